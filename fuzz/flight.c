/* flight.c -- any bytes as two flight records: accepted parts are consistent and can be combined.
 *
 * The first byte selects the rank numbers in the file names, and whether the records' seals
 * (checksums) are corrected before reading, so that the fuzzer reaches the code after this check.
 * The second byte determines the length of the first file; the second file has the remaining bytes.
 */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "flight/flight.h"

static void seal_all(uint8_t *data, size_t bytes)
{
    lki_flight_header *h = (lki_flight_header *)(void *)data;
    if (bytes < sizeof *h)
        return;
    h->magic       = LKI_FLIGHT_MAGIC;
    h->version     = LKI_FLIGHT_VERSION;
    h->entry_bytes = sizeof(lki_flight_entry);
    h->group_count &= 3;
    h->entry_count = 1 + h->entry_count % 32;
    h->world       = 1 + h->world % 8;
    h->rank %= h->world;
    h->seal         = lki_flight_header_seal(h);
    h->failure.seal = lki_flight_seal(&h->failure, sizeof h->failure);
    for (int i = 0; i < 2; i++)
        h->places[i].seal = lki_flight_seal(&h->places[i], sizeof h->places[i]);
    size_t at = sizeof *h;
    for (uint32_t i = 0; i < h->group_count && at + sizeof(lki_flight_group) <= bytes; i++) {
        lki_flight_group *group = (lki_flight_group *)(void *)(data + at);
        group->seal             = lki_flight_seal(group, sizeof *group);
        at += sizeof *group;
    }
    for (; at + sizeof(lki_flight_entry) <= bytes; at += sizeof(lki_flight_entry)) {
        lki_flight_entry *entry = (lki_flight_entry *)(void *)(data + at);
        entry->seal             = lki_flight_entry_seal(entry);
    }
}

static void check_text(const char *text)
{
    for (; *text != '\0'; text++)
        LK_ASSERT(*text >= ' ' && *text <= '~');
}

static void check(const lk_flight *flight)
{
    const lk_flight_operation *op;
    const lk_flight_rank      *rank;
    const lk_flight_finding   *finding;
    const lk_flight_place     *place;
    uint32_t                   ranks = 0;
    for (; (rank = lk_flight_rank_at(flight, ranks)) != NULL; ranks++) {
        LK_ASSERT(rank->rank == ranks && rank->last <= rank->met);
        check_text(rank->problem);
        check_text(rank->phase);
        check_text(rank->failure);
    }
    for (size_t i = 0; (op = lk_flight_operation_at(flight, i)) != NULL; i++) {
        LK_ASSERT(op->visit_count > 0 && op->first_ns <= op->last_ns);
        check_text(op->operation);
        for (uint32_t k = 0; k < op->visit_count; k++) {
            LK_ASSERT(op->visits[k].rank < ranks);
            check_text(op->visits[k].operation);
        }
        for (uint32_t k = 0; k < op->absent_count; k++)
            LK_ASSERT(op->absent[k] < ranks);
    }
    for (size_t i = 0; (place = lk_flight_place_at(flight, i)) != NULL; i++)
        check_text(place->open != NULL ? place->open->operation : place->group);
    for (size_t i = 0; (finding = lk_flight_finding_at(flight, i)) != NULL; i++) {
        LK_ASSERT(finding->rank < ranks);
        check_text(finding->text);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    lki_flight_file *files = NULL;
    lk_flight       *flight;
    size_t           rest = size - 2, first = rest * data[1] / 255;
    const size_t     bytes[2] = { first, rest - first };
    const char *names[2] = { "rank-0.flight", data[0] & 2 ? "rank-1.flight" : "rank-0.flight" };
    if (LKI_NEW(&files, 2, "files") != LK_OK)
        abort();
    for (int i = 0; i < 2; i++) {
        void *copy = NULL;
        if (lki_alloc(&copy, bytes[i], "file") != LK_OK)
            abort();
        memcpy(copy, data + 2 + (i == 0 ? 0 : first), bytes[i]);
        if (data[0] & 1)
            seal_all(copy, bytes[i]);
        if (lki_flight_parse(&files[i], names[i], copy, bytes[i]) != LK_OK)
            abort();
        files[i].here    = data[0] & 4;
        files[i].process = data[0] & 8 ? 'S' : 0;
        lki_free(copy);
    }
    if (lki_flight_merge(&flight, files, 2, INT64_MAX / 4) == LK_OK)
        check(flight);
    lk_flight_free(flight);
    return 0;
}
