/* hugging_face_test.c -- keys of config.json that can stand in more than one place. */
#include "models/hugging_face.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"

#define CONFIG                                                                                   \
    "'model_type': 'llama', 'vocab_size': 256, 'max_position_embeddings': 128, "                 \
    "'hidden_size': 16, 'intermediate_size': 32, 'num_hidden_layers': 1, "                       \
    "'num_attention_heads': 2"
#define FACTORS                                                                                  \
    "'rope_type': 'llama3', 'factor': 8, 'low_freq_factor': 1, 'high_freq_factor': 4"

/* Reads a configuration in which ' stands for ". */
static lk_status read_config(lk_model_options *options, const char *text)
{
    char                 json[1024];
    const lki_hf_family *family;
    (void)snprintf(json, sizeof json, "%s", text);
    for (char *at = json; *at != '\0'; at++)
        *at = *at == '\'' ? '"' : *at;
    json_t *config = json_loads(json, 0, NULL);
    assert_non_null(config);
    lk_status status = lki_hf_read(&family, options, config, "config.json");
    json_decref(config);
    return status;
}

/* The original context stands beside the factors or, as transformers 5 reads it, outside. */
static void an_original_context_is_found(void **state)
{
    static const struct {
        uint32_t    tokens;
        const char *text;
    } cases[] = {
        { 128, "{" CONFIG ", 'rope_parameters': {" FACTORS "}}" },
        { 32, "{" CONFIG ", 'rope_parameters': {" FACTORS
              ", 'original_max_position_embeddings': 32}}" },
        { 32, "{" CONFIG ", 'rope_parameters': {" FACTORS
              "}, 'original_max_position_embeddings': 32}" },
        { 32, "{" CONFIG ", 'rope_scaling': {" FACTORS
              "}, 'original_max_position_embeddings': 32}" },
        { 32, "{" CONFIG ", 'rope_scaling': {" FACTORS ", 'original_max_position_embeddings': 32}, "
              "'original_max_position_embeddings': 32}" },
        { 0, "{" CONFIG ", 'original_max_position_embeddings': 32}" }, /* nothing is scaled */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lk_model_options options;
        assert_int_equal(read_config(&options, cases[i].text), LK_OK);
        assert_int_equal(options.rope_original, cases[i].tokens);
    }
}

static void another_original_context_is_refused(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        { "{" CONFIG ", 'rope_parameters': {" FACTORS ", 'original_max_position_embeddings': 32}, "
          "'original_max_position_embeddings': 64}",
          "config.json: `original_max_position_embeddings` is 64, but another number beside the" },
        { "{" CONFIG ", 'rope_parameters': {" FACTORS ", 'original_max_position_embeddings': 32}, "
          "'original_max_position_embeddings': null}", "is null, and must be a whole number" },
        { "{" CONFIG ", 'rope_scaling': {" FACTORS ", 'original_max_position_embeddings': 0}}",
          "is 0, and must be a whole number from 1" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        lk_model_options options;
        assert_int_equal(read_config(&options, cases[i].text), LK_EUNSUPPORTED);
        assert_non_null(strstr(lk_error_last()->message, cases[i].says));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_original_context_is_found),
        cmocka_unit_test(another_original_context_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
