/* events.c -- writes event files; see events.h.
 *
 *   TFRecord  uint64 length, uint32 masked CRC32C of it, data, uint32 masked CRC32C of the data
 *   Event     1 wall_time (double), 2 step (int64), 3 file_version, 5 summary, 7 session_log
 *   Summary   1 value: 1 tag, 2 simple_value (float), 8 tensor, 9 metadata
 *   tensor    1 dtype (7: string), 2 shape, 8 string_val;  metadata  1 plugin_data: 1 plugin_name
 *
 * Each step is one record and one write, so a killed run leaves whole records, except for the last
 * one, which readers leave out.
 */
#include "train/core/events.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "train/core/log_owner.h"

enum { TEXT_BYTES = 24576, RECORD_BYTES = TEXT_BYTES + 256 };

struct lki_events {
    FILE *file;
    int   lock;  /* of the directory; -1: none */
    bool  begun; /* the file says where it begins */
    char  path[1024];
    unsigned char record[RECORD_BYTES];
};

/* A message, built from its end to its beginning: so a length is known when it is written. */
typedef struct {
    unsigned char *bytes;
    size_t         at; /* the first byte in use */
} message;

static uint32_t crc32c(const unsigned char *bytes, size_t count)
{
    uint32_t sum = UINT32_MAX;
    for (size_t i = 0; i < count; i++) {
        sum ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            sum = sum >> 1 ^ (0x82f63b78u & (0u - (sum & 1)));
    }
    return ~sum;
}

static uint32_t masked(const unsigned char *bytes, size_t count)
{
    uint32_t sum = crc32c(bytes, count);
    return (sum >> 15 | sum << 17) + 0xa282ead8u;
}

static void store(unsigned char *to, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = (unsigned char)(value >> (8 * i));
}

/* ---- Protocol buffers ---------------------------------------------------------------------- */

static void put_bytes(message *m, const void *bytes, size_t count)
{
    LK_ASSERT(m->at >= count);
    m->at -= count;
    memcpy(m->bytes + m->at, bytes, count);
}

static void put_varint(message *m, uint64_t value)
{
    unsigned char text[10];
    size_t        count = 0;
    do {
        text[count++] = (unsigned char)((value & 127) | (value > 127 ? 128 : 0));
        value >>= 7;
    } while (value > 0);
    put_bytes(m, text, count);
}

static void put_key(message *m, uint32_t field, uint32_t type)
{
    put_varint(m, field << 3 | type);
}

/* Writes the length and the key before a nested message that ends at `end`. */
static void put_head(message *m, uint32_t field, size_t end)
{
    put_varint(m, end - m->at);
    put_key(m, field, 2);
}

static void put_string(message *m, uint32_t field, const char *text)
{
    size_t end = m->at;
    put_bytes(m, text, strlen(text));
    put_head(m, field, end);
}

/* Writes a value of four bytes (type 5) or eight (type 1). */
static void put_fixed(message *m, uint32_t field, uint64_t bits, size_t count)
{
    unsigned char bytes[8];
    store(bytes, bits, count);
    put_bytes(m, bytes, count);
    put_key(m, field, count == 4 ? 5 : 1);
}

static void put_double(message *m, uint32_t field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_fixed(m, field, bits, sizeof bits);
}

static void put_float(message *m, uint32_t field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_fixed(m, field, bits, sizeof bits);
}

static void put_number(message *m, uint32_t field, uint64_t value)
{
    put_varint(m, value);
    put_key(m, field, 0);
}

static void put_scalar(message *m, const char *tag, double value)
{
    size_t end = m->at;
    put_float(m, 2, (float)value);
    put_string(m, 1, tag);
    put_head(m, 1, end);
}

/* ---- Records ------------------------------------------------------------------------------- */

static message begin(lki_events *events)
{
    return (message){ events->record, RECORD_BYTES - 4 };
}

/* Ends an event whose content is in `m`, and writes it. */
static lk_status write_event(lki_events *events, message *m, uint64_t step)
{
    if (step > 0)
        put_number(m, 2, step);
    put_double(m, 1, lki_wall_seconds());
    size_t         count = RECORD_BYTES - 4 - m->at;
    unsigned char *head  = m->bytes + m->at - 12;
    store(m->bytes + RECORD_BYTES - 4, masked(m->bytes + m->at, count), 4);
    store(head, count, 8);
    store(head + 8, masked(head, 8), 4);
    if (fwrite(head, 1, count + 16, events->file) == count + 16 && fflush(events->file) == 0)
        return LK_OK;
    return lk_fail(LK_EIO, "cannot write the event file '%s': %s", events->path, strerror(errno));
}

/* Says once that this file begins with `step`: steps from there on in earlier files are void. */
static lk_status say_start(lki_events *events, uint64_t step)
{
    if (events->begun)
        return LK_OK;
    message m     = begin(events);
    size_t  end   = m.at;
    events->begun = true;
    put_number(&m, 1, 1); /* START */
    put_head(&m, 7, end);
    return write_event(events, &m, step);
}

void lki_events_free(lki_events *events)
{
    if (events == NULL)
        return;
    if (events->file != NULL)
        (void)fclose(events->file);
    if (events->lock >= 0)
        (void)close(events->lock);
    lki_free(events);
}

/* Locks the directory.  Another run may have the lock only if this one takes over from another
 * rank, whose process may not have ended. */
static lk_status lock(lki_events *events, const char *directory, bool alone)
{
    events->lock = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (events->lock < 0 || lki_file_lock(events->lock) != EWOULDBLOCK || !alone)
        return LK_OK;
    return lki_output_in_use("tensorboard", directory);
}

/* Opens a new file.  Readers take files in the order of their names. */
static lk_status open_file(lki_events *events, const char *directory)
{
    char host[65] = "host";
    (void)gethostname(host, sizeof host - 1);
    (void)snprintf(events->path, sizeof events->path, "%.800s/events.out.tfevents.%017.6f.%s.%d",
                   directory, lki_wall_seconds(), host, (int)getpid());
    events->file = fopen(events->path, "we");
    return events->file != NULL ? LK_OK
                                : lk_fail(LK_EIO, "cannot write the event file '%s': %s",
                                          events->path, strerror(errno));
}

lk_status lki_events_open(lki_events **out, const char *directory, bool alone)
{
    lki_events *events = NULL;
    if (mkdir(directory, 0777) != 0 && errno != EEXIST)
        return lk_fail(LK_EIO, "cannot make the directory `tensorboard` '%s': %s", directory,
                       strerror(errno));
    LK_TRY(LKI_NEW(&events, 1, "event file"));
    lk_status status = lock(events, directory, alone);
    if (status == LK_OK)
        status = open_file(events, directory);
    if (status != LK_OK) {
        lki_events_free(events);
        return status;
    }
    *out = events;
    message m = begin(events);
    put_string(&m, 3, "brain.Event:2");
    return write_event(events, &m, 0);
}

lk_status lki_events_step(lki_events *events, const lki_step_record *r)
{
    if (events == NULL)
        return LK_OK;
    LK_TRY(say_start(events, r->step));
    message m   = begin(events);
    size_t  end = m.at;
    if (r->loss_scale > 0)
        put_scalar(&m, "train/loss_scale", r->loss_scale);
    put_scalar(&m, "time/finish_ms", 1e3 * r->finish_seconds);
    put_scalar(&m, "time/compute_ms", 1e3 * r->compute_seconds);
    put_scalar(&m, "time/data_ms", 1e3 * r->data_seconds);
    put_scalar(&m, "time/step_ms", 1e3 * r->seconds);
    if (r->tokens > 0)
        put_scalar(&m, "speed/tokens_per_s", lki_per_second(r, r->tokens));
    put_scalar(&m, "speed/samples_per_s", lki_per_second(r, r->samples));
    put_scalar(&m, "train/epoch", (double)r->epoch);
    put_scalar(&m, "train/grad_norm", r->grad_norm);
    put_scalar(&m, "train/lr", r->lr);
    put_scalar(&m, "train/loss", r->loss);
    put_head(&m, 5, end);
    return write_event(events, &m, r->step);
}

lk_status lki_events_evaluation(lki_events *events, uint64_t step, double loss, double accuracy,
                                double rmse, bool tokens)
{
    if (events == NULL)
        return LK_OK;
    LK_TRY(say_start(events, step + 1));
    message m   = begin(events);
    size_t  end = m.at;
    if (tokens)
        put_scalar(&m, "evaluation/perplexity", exp(loss));
    if (!isnan(rmse))
        put_scalar(&m, "evaluation/rmse", rmse);
    else
        put_scalar(&m, "evaluation/accuracy", accuracy);
    put_scalar(&m, "evaluation/loss", loss);
    put_head(&m, 5, end);
    return write_event(events, &m, step);
}

lk_status lki_events_text(lki_events *events, const char *tag, const char *text)
{
    if (events == NULL)
        return LK_OK;
    char *copy = NULL; /* Markdown: a block of code */
    LK_TRY(LKI_NEW(&copy, TEXT_BYTES, "text of an event"));
    (void)snprintf(copy, TEXT_BYTES, "```\n%.*s\n```", TEXT_BYTES - 16, text);
    message m   = begin(events);
    size_t  end = m.at, value = m.at, plugin;
    plugin      = m.at;
    put_string(&m, 1, "text"); /* plugin_name */
    put_head(&m, 1, plugin);   /* plugin_data */
    put_head(&m, 9, plugin);   /* metadata */
    size_t tensor = m.at;
    put_string(&m, 8, copy);
    put_head(&m, 2, m.at); /* the shape of a scalar */
    put_number(&m, 1, 7);
    put_head(&m, 8, tensor);
    put_string(&m, 1, tag);
    put_head(&m, 1, value);
    put_head(&m, 5, end);
    lki_free(copy);
    return write_event(events, &m, 0);
}
