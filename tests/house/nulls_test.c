/* nulls_test.c -- a missing path, name or list is an error, and no crash; see lockstep/base.h.
 *
 * Method: a table of calls, with NULL for each such argument of public functions that need no
 *         communicator.  (Those have tests in their rooms.)  Such an argument is refused before an
 *         object is used, so objects may be missing here, too.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lockstep/checkpoint.h"
#include "lockstep/clients.h"
#include "lockstep/comm.h"
#include "lockstep/compress.h"
#include "lockstep/data.h"
#include "lockstep/export.h"
#include "lockstep/flight.h"
#include "lockstep/launch.h"
#include "lockstep/models.h"
#include "lockstep/nn.h"
#include "lockstep/report.h"
#include "lockstep/tensor.h"
#include "lockstep/tokenizer.h"
#include "lockstep/train.h"

static const lk_shape one = { 1, { 1 } };

/* Expects that a call was refused, and that the message names the argument. */
static void check(const char *call, const char *argument, lk_status status)
{
    char quoted[64];
    (void)snprintf(quoted, sizeof quoted, "`%s` is NULL", argument);
    if (status != LK_EINVAL || strstr(lk_error_last()->message, quoted) == NULL)
        fail_msg("%s: %s, %s", call, lk_status_name(status), lk_error_last()->message);
}

#define REFUSED(argument, call) check(#call, argument, call)

static void checkpoints(void **state)
{
    lk_checkpoint     *checkpoint;
    lk_safetensors    *file;
    bool               is;
    lk_checkpoint_info info = { .step = 1, .exactness_id = "x", .weights = "x", .config = "{}" };
    (void)state;
    REFUSED("dir", lk_checkpoint_exists(NULL, &is));
    REFUSED("path", lk_checkpoint_open(&checkpoint, NULL, NULL, 0));
    assert_null(checkpoint);
    REFUSED("path", lk_checkpoint_open_manifest(&checkpoint, NULL, NULL, 0));
    REFUSED("dir", lk_checkpoint_open_step(&checkpoint, NULL, 1));
    REFUSED("dir", lk_checkpoint_write(NULL, &info, NULL, 0, 1));
    REFUSED("info", lk_checkpoint_write(".", NULL, NULL, 0, 1));
    REFUSED("files", lk_checkpoint_write(".", &info, NULL, 1, 1));
    REFUSED("path", lk_safetensors_open(&file, NULL));
    assert_null(file);
    REFUSED("path", lk_safetensors_write(NULL, NULL, 0));
    REFUSED("tensors", lk_safetensors_write("x", NULL, 1));
    float value;
    REFUSED("file", lk_checkpoint_read(NULL, NULL, "x", one, 0, 1, &value));
    REFUSED("name", lk_checkpoint_read(NULL, "x", NULL, one, 0, 1, &value));
}

static void models_and_compressors(void **state)
{
    const lk_compressor *compressor;
    const char          *name;
    lk_feedback          feedback;
    lk_model_options     options = LK_MODEL_OPTIONS_INIT;
    lk_model            *model;
    (void)state;
    REFUSED("name", lk_compressor_find(&compressor, NULL));
    assert_null(compressor);
    REFUSED("name", lk_feedback_find(&feedback, NULL));
    REFUSED("name", lk_model_resolve(&options, NULL));
    REFUSED("name", lk_model_build(&model, NULL, &options));
    assert_null(model);
    REFUSED("name", lk_model_new(&model, NULL, (lk_shape){ 1, { 1 } }, false));
    REFUSED("folder", lk_folder_model(&name, NULL));
    REFUSED("folder", lk_folder_options(&options, NULL));
}

static void reports(void **state)
{
    lk_flight        *flight;
    lk_log_check     *log;
    lk_statement     *statement;
    lk_log_compared   compared;
    lk_statement_step step;
    char              path[16];
    bool              equal;
    (void)state;
    REFUSED("directory", lk_flight_open(&flight, NULL));
    assert_null(flight);
    REFUSED("a", lk_diff(NULL, "b", NULL, NULL, &equal));
    REFUSED("b", lk_diff("a", NULL, NULL, NULL, &equal));
    assert_false(equal);
    REFUSED("run", lk_run_log(path, sizeof path, NULL));
    REFUSED("run", lk_run_file(path, sizeof path, NULL, "x"));
    REFUSED("path", lk_run_file(path, sizeof path, "x", NULL));
    REFUSED("log", lk_log_check_open(&log, NULL, 1));
    assert_null(log);
    REFUSED("run", lk_attest(NULL, "x"));
    REFUSED("draft", lk_attest_draft("x", NULL, "x"));
    REFUSED("file", lk_attest_draft("x", "x", NULL));
    REFUSED("file", lk_statement_open(&statement, NULL));
    assert_null(statement);
    REFUSED("path", lk_trace_merge(NULL, 0, 1, 0));
    REFUSED("replay", lk_log_check_compare(NULL, NULL, 0, NULL, NULL, &compared));
    REFUSED("run", lk_statement_check(NULL, 0, NULL));
    REFUSED("run", lk_statement_file(NULL, NULL, "x", path, sizeof path));
    REFUSED("path", lk_statement_file(NULL, "x", NULL, path, sizeof path));
    REFUSED("log", lk_statement_compare_log(NULL, 0, 1, NULL, &step));
}

static void others(void **state)
{
    lk_tokenizer *tokenizer;
    unsigned char key[LK_JOB_KEY_BYTES];
    double        latency, bandwidth;
    char          module[LK_MODULE_PATH];
    (void)state;
    REFUSED("path", lk_comm_read_tuning(NULL, &latency, &bandwidth));
    REFUSED("path", lk_job_key_new(NULL));
    REFUSED("from", lk_job_key_read(key, NULL));
    REFUSED("path", lk_tokenizer_open(&tokenizer, NULL));
    assert_null(tokenizer);
    REFUSED("json", lk_tokenizer_parse(&tokenizer, NULL, 1, "x"));
    REFUSED("name", lk_tokenizer_parse(&tokenizer, "{}", 2, NULL));
    REFUSED("path", lk_exec_use_onednn(NULL, NULL));
    REFUSED("name", lk_module_find(module, NULL, "x"));
    REFUSED("package", lk_module_find(module, "x", NULL));
}

static lk_status plan_param(lk_plan *plan)
{
    return lk_plan_param(plan, NULL, one, LK_INIT_ZERO, 0, false);
}

static lk_status plan_shared(lk_plan *plan)
{
    return lk_plan_param_shared(plan, NULL, one);
}

static lk_status plan_state(lk_plan *plan)
{
    return lk_plan_state(plan, NULL, 1, 0, 0);
}

/* Plan functions get the message with the type and name of their block. */
static void blocks(void **state)
{
    lk_block_type type = { .name = "x", .plan = plan_param };
    lk_model     *model;
    lk_value      out, input = 0;
    (void)state;
    assert_int_equal(lk_model_new(&model, "x", one, false), LK_OK);
    REFUSED("name", lk_model_add(&out, model, &type, NULL, NULL, 0, &input, 1));
    REFUSED("options", lk_model_add(&out, model, &type, "x", NULL, 4, &input, 1));
    REFUSED("inputs", lk_model_add(&out, model, &type, "x", NULL, 0, NULL, 1));
    REFUSED("suffix", lk_model_add(&out, model, &type, "x", NULL, 0, &input, 1));
    type.plan = plan_state;
    REFUSED("suffix", lk_model_add(&out, model, &type, "x", NULL, 0, &input, 1));
    type.plan = plan_shared;
    REFUSED("full_name", lk_model_add(&out, model, &type, "x", NULL, 0, &input, 1));
    lk_model_free(model);
}

/* Without options each number has its default, or is missing. */
static void options(void **state)
{
    lk_dataset *set     = NULL;
    lk_loader  *loader  = NULL;
    lk_clients *clients = NULL;
    (void)state;
    assert_int_equal(lk_dataset_open(&set, NULL, NULL), LK_EINVAL);
    assert_int_equal(lk_dataset_open(&set, "synthetic:images=8,h=2,w=2,c=1,classes=2", NULL),
                     LK_OK);
    assert_int_equal(lk_loader_open(&loader, set, NULL), LK_EINVAL);
    assert_int_equal(lk_clients_open(&clients, set, NULL), LK_EINVAL);
    lk_loader_free(loader);
    lk_clients_free(clients);
    lk_dataset_free(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpoints), cmocka_unit_test(models_and_compressors),
        cmocka_unit_test(reports), cmocka_unit_test(others), cmocka_unit_test(blocks),
        cmocka_unit_test(options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
