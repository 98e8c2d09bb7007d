/* cmd_watch.c -- `lockstep watch`: serves the page about runs, and follows them. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/report.h"
#include "cli/words.h"
#include "cli/workers.h"

typedef struct {
    lki_report_runs given;
    const char     *address;
    uint32_t        port;
} watch_options;

#define AT(field) offsetof(watch_options, field)

static const lki_option table[] = {
    LKI_U32("port", "N", AT(port), 0, 65535, "any that is free", "port to listen at"),
    LKI_STRING("address", "IP", AT(address), "127.0.0.1",
               "address of this machine to listen at; with another one than the default, whoever "
               "has the URL can read the page over the network"),
    LKI_REPORT_FLIGHT,
    LKI_REPORT_RUNS,
    LKI_OPTIONS_END,
};

/* Blocks the signals that end the command, also for threads to come. */
static void block_signals(sigset_t *set)
{
    (void)sigemptyset(set);
    (void)sigaddset(set, SIGINT);
    (void)sigaddset(set, SIGTERM);
    (void)sigaddset(set, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, set, NULL);
}

/* Returns true for addresses that only this machine reaches. */
static bool is_of_this_machine(const char *address)
{
    return address == NULL || strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

static int serve(const watch_options *options, lk_report *report)
{
    lk_watch_options how = LK_WATCH_OPTIONS_INIT;
    lk_watch        *watch;
    sigset_t         set;
    int              signal;
    how.address = options->address;
    how.port    = (uint16_t)options->port;
    block_signals(&set);
    lk_status status = lk_watch_open(&watch, report, &how);
    if (status != LK_OK) {
        lki_print_error("watch");
        return status == LK_EINVAL ? LKI_EXIT_USAGE : LKI_EXIT_FAILURE;
    }
    if (!is_of_this_machine(options->address))
        fprintf(stderr, "lockstep watch: note: whoever has this URL can read the page over the "
                        "network, and nothing encrypts it\n");
    printf("%s\n", lk_watch_url(watch));
    (void)fflush(stdout);
    fprintf(stderr, "open it in a browser; Ctrl-C ends the server\n");
    (void)sigwait(&set, &signal);
    lk_watch_free(watch);
    return 0;
}

static int watch_main(int argc, char **argv)
{
    watch_options options = { 0 };
    lk_report    *report  = NULL;
    int           done    = lki_options_parse(&lki_command_watch, argc, argv, &options);
    if (done < 0)
        done = lki_refuse_half_job(&lki_command_watch, NULL);
    if (done < 0)
        done = lki_report_open(&lki_command_watch, &options.given, &report);
    if (done >= 0)
        return done;
    done = serve(&options, report);
    lk_report_free(report);
    return done;
}

const lki_command lki_command_watch = {
    .name    = "watch",
    .summary = "serve the page about runs, and follow them",
    .usage   = "[--port N] [--address IP] [--flight DIR] RUN...",
    .about =
        "Serves the page of `lockstep report` to a browser on this machine, and adds what the "
        "runs\n"
        "write.  Prints the page's URL, which has a random token: requests without the token, or\n"
        "under another host name, are refused.  Ctrl-C ends it.  From another machine, forward\n"
        "the same port: ssh -L 7777:127.0.0.1:7777 HOST, with --port 7777.",
    .examples = "  lockstep watch run1.jsonl\n"
                "  lockstep watch --port 7777 run1.jsonl run2.jsonl",
    .options  = table,
    .main     = watch_main,
};
