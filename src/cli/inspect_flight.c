/* inspect_flight.c -- `lockstep inspect --flight`: prints the last operations of a job's ranks.
 *
 * All data are first stored in one JSON object, from which the text is printed (as in
 * cmd_inspect.c).
 */
#include "cli/inspect.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/options.h"
#include "cli/words.h"
#include "lockstep/flight.h"

/* ---- The report ---------------------------------------------------------------------------- */

static json_t *time_value(int64_t ns)
{
    return ns == 0 ? json_null() : json_integer(ns);
}

static json_t *rank_entry(const lk_flight_rank *rank)
{
    char    failure[LKI_WORDS_BYTES];
    json_t *entry = json_pack("{s:I, s:s, s:s, s:s, s:I, s:o, s:o, s:I, s:I}", "rank",
                              (json_int_t)rank->rank, "state", lk_flight_state_name(rank->state),
                              "problem", rank->problem, "host", rank->host, "pid",
                              (json_int_t)rank->pid, "opened_ns", time_value(rank->opened_ns),
                              "last_ns", time_value(rank->last_ns), "entries",
                              (json_int_t)rank->entries, "lost", (json_int_t)rank->lost);
    if (rank->noted)
        json_object_update_new(entry,
                               json_pack("{s:I, s:s, s:I}", "step", (json_int_t)rank->step, "phase",
                                         rank->phase, "noted_ns", (json_int_t)rank->noted_ns));
    lki_words(failure, sizeof failure, rank->failure);
    if (failure[0] != '\0')
        json_object_update_new(entry, json_pack("{s:s, s:I}", "failure", failure, "failed_ns",
                                                (json_int_t)rank->failed_ns));
    json_object_update_new(entry,
                           json_pack("{s:I, s:I, s:I}", "met", (json_int_t)rank->met, "came_last",
                                     (json_int_t)rank->last, "late_ns", (json_int_t)rank->late_ns));
    return entry;
}

static json_t *operation_name(const lk_flight_operation *operation)
{
    return operation == NULL ? json_null() : json_string(operation->operation);
}

static json_t *place_entry(const lk_flight_place *place)
{
    return json_pack("{s:s, s:I, s:I, s:o, s:o, s:I}", "group", place->group, "group_size",
                     (json_int_t)place->group_size, "rank", (json_int_t)place->rank, "completed",
                     operation_name(place->completed), "open", operation_name(place->open),
                     "open_count", (json_int_t)place->open_count);
}

static json_t *visit_entry(const lk_flight_visit *visit)
{
    json_t *entry = json_pack("{s:I, s:s, s:I, s:o, s:o, s:I}", "rank", (json_int_t)visit->rank,
                              "fate", lk_flight_fate_name(visit->fate), "began_ns",
                              (json_int_t)visit->began_ns, "met_ns", time_value(visit->met_ns),
                              "ended_ns", time_value(visit->ended_ns), "step",
                              (json_int_t)visit->step);
    if (visit->differs)
        json_object_set_new(entry, "operation", json_string(visit->operation));
    return entry;
}

static json_t *operation_entry(const lk_flight_operation *operation)
{
    json_t *visits = json_array(), *absent = json_array();
    for (uint32_t i = 0; i < operation->visit_count; i++)
        json_array_append_new(visits, visit_entry(&operation->visits[i]));
    for (uint32_t i = 0; i < operation->absent_count; i++)
        json_array_append_new(absent, json_integer((json_int_t)operation->absent[i]));
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:o, s:b, s:o, s:o, s:I}", "operation",
                     operation->operation, "bytes", (json_int_t)operation->bytes, "group_size",
                     (json_int_t)operation->group_size, "first_ns", (json_int_t)operation->first_ns,
                     "spread_ns", (json_int_t)(operation->last_ns - operation->first_ns),
                     "ended_ns", time_value(operation->ended_ns), "differs", operation->differs,
                     "visits", visits, "absent", absent, "unknown",
                     (json_int_t)operation->unknown_count);
}

static json_t *report_of(const lk_flight *flight, const char *directory, uint32_t rows)
{
    json_t *ranks = json_array(), *places = json_array(), *findings = json_array(),
           *operations              = json_array();
    const lk_flight_rank      *rank = NULL;
    const lk_flight_place     *place;
    const lk_flight_finding   *finding;
    const lk_flight_operation *operation;
    size_t                     count = lk_flight_operation_count(flight);

    for (size_t i = 0; (rank = lk_flight_rank_at(flight, i)) != NULL; i++)
        json_array_append_new(ranks, rank_entry(rank));
    for (size_t i = 0; (place = lk_flight_place_at(flight, i)) != NULL; i++)
        json_array_append_new(places, place_entry(place));
    for (size_t i = 0; (finding = lk_flight_finding_at(flight, i)) != NULL; i++)
        json_array_append_new(
            findings, json_pack("{s:s, s:I, s:s}", "kind", lk_flight_finding_name(finding->kind),
                                "rank", (json_int_t)finding->rank, "text", finding->text));
    for (size_t i = count > rows ? count - rows : 0;
         (operation = lk_flight_operation_at(flight, i)) != NULL; i++)
        json_array_append_new(operations, operation_entry(operation));
    return json_pack("{s:s, s:I, s:o, s:o, s:o, s:I, s:o}", "flight", directory, "read_ns",
                     (json_int_t)lk_flight_time(flight), "ranks", ranks, "places", places,
                     "findings", findings, "operation_count", (json_int_t)count, "operations",
                     operations);
}

/* ---- Text ---------------------------------------------------------------------------------- */

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static long long number_of(const json_t *object, const char *key)
{
    return (long long)json_integer_value(json_object_get(object, key));
}

/* Prints the time of day with microseconds.  With `day`, also prints the date. */
static void print_time(long long ns, bool day)
{
    time_t    seconds = (time_t)(ns / 1000000000);
    struct tm parts;
    char      text[40];
    if (ns == 0 || localtime_r(&seconds, &parts) == NULL ||
        strftime(text, sizeof text, day ? "%Y-%m-%d %H:%M:%S" : "%H:%M:%S", &parts) == 0)
        printf("%15s", "-");
    else
        printf("%s.%06lld", text, ns / 1000 % 1000000);
}

static void print_ranks(const json_t *report)
{
    const json_t *ranks = json_object_get(report, "ranks");
    printf("%4s  %-9s %8s  %-15s %8s  %-28s %s\n", "rank", "state", "pid", "last sign", "step",
           "phase", "came last in");
    for (size_t i = 0; i < json_array_size(ranks); i++) {
        const json_t *rank = json_array_get(ranks, i);
        printf("%4lld  %-9s ", number_of(rank, "rank"), text_of(rank, "state"));
        if (number_of(rank, "pid") == 0) {
            printf("%8s\n", "-");
            continue;
        }
        printf("%8lld  ", number_of(rank, "pid"));
        print_time(number_of(rank, "last_ns"), false);
        if (json_object_get(rank, "step") != NULL)
            printf(" %8lld  %-28s ", number_of(rank, "step"), text_of(rank, "phase"));
        else
            printf(" %8s  %-28s ", "-", "");
        printf("%lld of %lld\n", number_of(rank, "came_last"), number_of(rank, "met"));
    }
}

static void print_places(const json_t *report)
{
    const json_t *places = json_object_get(report, "places");
    const char   *group  = NULL;
    for (size_t i = 0; i < json_array_size(places); i++) {
        const json_t *place = json_array_get(places, i), *next = json_array_get(places, i + 1);
        bool          head = group == NULL || strcmp(group, text_of(place, "group")) != 0;
        const char   *open = text_of(place, "open"), *completed = text_of(place, "completed");
        group = text_of(place, "group");
        if (next == NULL || number_of(next, "rank") <= number_of(place, "rank"))
            group = NULL; /* a different group of that name begins */
        if (head)
            printf("\n%s\n", text_of(place, "group"));
        printf("  rank %4lld  completed %s", number_of(place, "rank"),
               completed[0] != '\0' ? completed : "nothing");
        if (open[0] != '\0')
            printf("; in %s", open);
        if (number_of(place, "open_count") > 1)
            printf(" and %lld more", number_of(place, "open_count") - 1);
        printf("\n");
    }
}

static void print_findings(const json_t *report)
{
    const json_t *findings = json_object_get(report, "findings");
    printf("\nfindings\n");
    for (size_t i = 0; i < json_array_size(findings); i++) {
        const json_t *finding = json_array_get(findings, i);
        printf("  %-9s  %s\n", text_of(finding, "kind"), text_of(finding, "text"));
    }
    if (json_array_size(findings) == 0)
        printf("  nothing is wrong\n");
}

static void print_operation(const json_t *operation)
{
    const json_t *absent = json_object_get(operation, "absent");
    long long     first = number_of(operation, "first_ns"), end = number_of(operation, "ended_ns");
    printf("  ");
    print_time(first, false);
    printf(" %12.1f ", 1e-3 * (double)number_of(operation, "spread_ns"));
    if (end != 0)
        printf("%12.1f  ", 1e-3 * (double)(end - first));
    else
        printf("%12s  ", "open");
    printf("%zu of %lld  %s", json_array_size(json_object_get(operation, "visits")),
           number_of(operation, "group_size"), text_of(operation, "operation"));
    if (json_is_true(json_object_get(operation, "differs")))
        printf("  MISMATCH");
    for (size_t i = 0; i < json_array_size(absent); i++)
        printf("%s%lld", i == 0 ? "  absent: " : ", ",
               (long long)json_integer_value(json_array_get(absent, i)));
    printf("\n");
}

static void print_report(const json_t *report)
{
    const json_t *operations = json_object_get(report, "operations");
    printf("flight  %s, read ", text_of(report, "flight"));
    print_time(number_of(report, "read_ns"), true);
    printf("\n\n");
    print_ranks(report);
    print_places(report);
    print_findings(report);
    printf("\noperations: the last %zu of %lld\n", json_array_size(operations),
           number_of(report, "operation_count"));
    if (json_array_size(operations) > 0)
        printf("  %-15s %12s %12s  %s\n", "first arrival", "spread us", "took us", "ranks");
    for (size_t i = 0; i < json_array_size(operations); i++)
        print_operation(json_array_get(operations, i));
}

static bool is_whole(const json_t *report)
{
    const json_t *ranks = json_object_get(report, "ranks");
    for (size_t i = 0; i < json_array_size(ranks); i++)
        if (text_of(json_array_get(ranks, i), "problem")[0] != '\0')
            return false;
    return true;
}

static int show(const json_t *report, bool json)
{
    if (!json) {
        print_report(report);
        return is_whole(report) ? 0 : LKI_EXIT_FAILURE;
    }
    char *text = json_dumps(report, JSON_COMPACT);
    if (text == NULL) {
        fprintf(stderr, "lockstep inspect: out of memory\n");
        return LKI_EXIT_FAILURE;
    }
    printf("%s\n", text);
    free(text);
    return is_whole(report) ? 0 : LKI_EXIT_FAILURE;
}

int lki_inspect_flight(const char *directory, uint32_t rows, bool json)
{
    lk_flight *flight;
    if (lk_flight_open(&flight, directory) != LK_OK) {
        lki_print_error("inspect");
        return LKI_EXIT_FAILURE;
    }
    json_t *report = report_of(flight, directory, rows);
    int     status = LKI_EXIT_FAILURE;
    if (report != NULL)
        status = show(report, json);
    else
        fprintf(stderr, "lockstep inspect: out of memory\n");
    json_decref(report);
    lk_flight_free(flight);
    return status;
}
