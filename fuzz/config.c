/* config.c -- any bytes as a config file: parsed or refused, without a crash or an invalid item. */
#include <stdlib.h>
#include <string.h>

#include "cli/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check(bool condition)
{
    if (!condition)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    lki_config  config;
    lki_message error = { "" };
    if (!lki_config_parse(&config, (const char *)data, bytes, "fuzz", &error)) {
        check(strncmp(error.text, "fuzz:", 5) == 0 && config.items == NULL && config.text == NULL);
        return 0;
    }
    for (size_t i = 0; i < config.count; i++) {
        const lki_config_item *item = &config.items[i];
        check(strlen(item->key) > 0 && strlen(item->key) + strlen(item->text) <= bytes * 2);
        for (size_t j = 0; j < i; j++)
            check(strcmp(item->key, config.items[j].key) != 0);
    }
    lki_config_free(&config);
    return 0;
}
