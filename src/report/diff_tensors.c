/* diff_tensors.c -- finds the tensors in which two checkpoints differ, and their first elements. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "device/half.h"
#include "report/diff.h"

enum { TEXT = 160 };

/* ---- Values as text ------------------------------------------------------------------------ */

/* Writes an element in decimal, with as many digits as identify it, and in hexadecimal. */
static void element_text(char text[TEXT], const lk_tensor *tensor, uint64_t at)
{
    size_t   size = lk_dtype_bytes(tensor->dtype);
    uint64_t bits = 0;
    char     number[LK_NUMBER_BYTES];
    memcpy(&bits, (const char *)tensor->data + at * size, size); /* little-endian */
    int      width = (int)(2 * size);
    unsigned shift = 64 - 8 * (unsigned)size;
    int64_t  whole = (int64_t)(bits << shift) >> shift;
    switch ((int)tensor->dtype) {
    case LK_F32:
        (void)snprintf(text, TEXT, "%.9g (0x%08" PRIx64 ")",
                       (double)lki_f32_from_bits((uint32_t)bits), bits);
        break;
    case LK_F64:
        lk_number_text(number, lki_double_of(bits));
        (void)snprintf(text, TEXT, "%s (0x%016" PRIx64 ")", number, bits);
        break;
    case LK_F16:
        (void)snprintf(text, TEXT, "%.5g (0x%04" PRIx64 ")",
                       (double)lki_f16_widen((uint16_t)bits), bits);
        break;
    case LK_BF16:
        (void)snprintf(text, TEXT, "%.4g (0x%04" PRIx64 ")",
                       (double)lki_bf16_widen((uint16_t)bits), bits);
        break;
    case LK_I8:
    case LK_I16:
    case LK_I32:
    case LK_I64:
        (void)snprintf(text, TEXT, "%" PRId64 " (0x%0*" PRIx64 ")", whole, width, bits);
        break;
    default: (void)snprintf(text, TEXT, "%" PRIu64 " (0x%0*" PRIx64 ")", bits, width, bits);
    }
}

static void shape_text(char text[TEXT], const lk_tensor *tensor)
{
    int used = snprintf(text, TEXT, "%s [", lk_dtype_name(tensor->dtype));
    for (uint32_t i = 0; i < tensor->shape.rank && used < TEXT - 24; i++)
        used += snprintf(text + used, (size_t)(TEXT - used), "%s%" PRIu64, i > 0 ? ", " : "",
                         tensor->shape.dims[i]);
    (void)snprintf(text + used, (size_t)(TEXT - used), "]");
}

static void index_text(char text[TEXT], const lk_shape *shape, uint64_t at)
{
    uint64_t index[LK_RANK_MAX];
    for (uint32_t i = shape->rank; i-- > 0; at /= shape->dims[i])
        index[i] = at % shape->dims[i];
    int used = snprintf(text, TEXT, "[");
    for (uint32_t i = 0; i < shape->rank && used < TEXT - 24; i++)
        used += snprintf(text + used, (size_t)(TEXT - used), "%s%" PRIu64, i > 0 ? ", " : "",
                         index[i]);
    (void)snprintf(text + used, (size_t)(TEXT - used), "]");
}

/* ---- Tensors ------------------------------------------------------------------------------- */

/* Finds the virtual workers of a group's values: PARAMETER.WHAT.GROUP in groups.safetensors. */
static void find_workers(const lki_diff *diff, lk_difference *d)
{
    unsigned    group;
    char        rest;
    const char *dot = strrchr(d->name, '.');
    if (strcmp(d->file, "groups.safetensors") != 0 || dot == NULL || diff->groups == 0 ||
        sscanf(dot, ".%u%c", &group, &rest) != 1 || group >= diff->groups)
        return;
    d->worker_count = diff->virtual_workers / diff->groups;
    d->first_worker = group * d->worker_count;
}

static bool same_shape(const lk_tensor *a, const lk_tensor *b)
{
    return a->dtype == b->dtype && a->shape.rank == b->shape.rank &&
           memcmp(a->shape.dims, b->shape.dims, a->shape.rank * sizeof a->shape.dims[0]) == 0;
}

static void compare_elements(lki_diff *diff, const lk_tensor *a, const lk_tensor *b,
                             lk_difference *d)
{
    char        text_a[TEXT], text_b[TEXT], index[TEXT];
    const char *x = a->data, *y = b->data;
    size_t      size = lk_dtype_bytes(a->dtype), count = lk_shape_count(a->shape);
    if (count == 0 || memcmp(x, y, count * size) == 0)
        return;
    d->kind = LK_DIFFERENCE_TENSOR;
    for (size_t i = count; i-- > 0;)
        if (memcmp(x + i * size, y + i * size, size) != 0) {
            d->element = i;
            d->count++;
        }
    element_text(text_a, a, d->element);
    element_text(text_b, b, d->element);
    index_text(index, &a->shape, d->element);
    d->a     = text_a;
    d->b     = text_b;
    d->index = index;
    lki_diff_report(diff, d);
}

static lk_status compare(lki_diff *diff, const lk_tensor *a, const lk_tensor *b, lk_difference *d)
{
    char text_a[TEXT], text_b[TEXT];
    if (a->data == NULL || b->data == NULL)
        return lk_fail(LK_ENOMEM, "tensor '%s' of '%s'", a->name, d->file);
    find_workers(diff, d);
    if (same_shape(a, b)) {
        compare_elements(diff, a, b, d);
        return LK_OK;
    }
    d->kind = LK_DIFFERENCE_SHAPE;
    shape_text(text_a, a);
    shape_text(text_b, b);
    d->a = text_a;
    d->b = text_b;
    lki_diff_report(diff, d);
    return LK_OK;
}

/* Returns the tensor with the name and file of another one.  Looks at index `hint` first. */
static const lk_tensor *find(lki_tensor_at at, const void *of, const char *file, const char *name,
                             size_t hint)
{
    const char      *other;
    const lk_tensor *tensor = at(of, hint, &other);
    if (tensor != NULL && strcmp(other, file) == 0 && strcmp(tensor->name, name) == 0)
        return tensor;
    for (size_t i = 0; (tensor = at(of, i, &other)) != NULL; i++)
        if (strcmp(other, file) == 0 && strcmp(tensor->name, name) == 0)
            return tensor;
    return NULL;
}

static void report_missing(lki_diff *diff, uint64_t step, const char *file, const lk_tensor *tensor,
                           bool only_a)
{
    char text[TEXT];
    shape_text(text, tensor);
    lki_diff_report(diff, &(lk_difference){ .kind = LK_DIFFERENCE_MISSING,
                                            .step = step,
                                            .file = file,
                                            .name = tensor->name,
                                            .a    = only_a ? text : "",
                                            .b    = only_a ? "" : text });
}

lk_status lki_diff_tensors(lki_diff *diff, uint64_t step, lki_tensor_at at_a, const void *a,
                           lki_tensor_at at_b, const void *b)
{
    const lk_tensor *tensor;
    const char      *file;
    for (size_t i = 0; (tensor = at_a(a, i, &file)) != NULL; i++) {
        const lk_tensor *other = find(at_b, b, file, tensor->name, i);
        lk_difference    d     = { .step = step, .file = file, .name = tensor->name };
        if (other == NULL)
            report_missing(diff, step, file, tensor, true);
        else
            LK_TRY(compare(diff, tensor, other, &d));
    }
    for (size_t i = 0; (tensor = at_b(b, i, &file)) != NULL; i++)
        if (find(at_a, a, file, tensor->name, i) == NULL)
            report_missing(diff, step, file, tensor, false);
    return LK_OK;
}
