/* forward.c -- moves the workers' output from their pipes to the launcher's output. */
#include "launch/job/forward.h"

void lki_forward_prepare(lki_job *job)
{
    for (uint32_t s = 0; s < 2; s++)
        job->polled[LKI_AT_SINKS + s] = (struct pollfd){
            .fd = job->sinks[s].used > 0 ? job->sinks[s].to : -1, .events = POLLOUT};
    for (uint32_t i = 0; i < job->count; i++)
        for (uint32_t s = 0; s < 2; s++)
            *lki_place(job, i, LKI_OF_STREAMS + s) = (struct pollfd){
                .fd = lki_sink_has_room(&job->sinks[s]) ? job->workers[i].streams[s].from : -1,
                .events = POLLIN};
}

void lki_forward_move(lki_job *job)
{
    for (uint32_t s = 0; s < 2; s++)
        if (job->polled[LKI_AT_SINKS + s].revents != 0)
            lki_sink_write(&job->sinks[s]);
    for (uint32_t i = 0; i < job->count; i++)
        for (uint32_t s = 0; s < 2; s++)
            if (lki_place(job, i, LKI_OF_STREAMS + s)->revents != 0
                && lki_sink_has_room(&job->sinks[s]))
                (void)lki_stream_read(&job->workers[i].streams[s], &job->sinks[s]);
}

/* Writes the rest of the output when all workers have ended.  Does not wait for output of processes
 * that the workers have left running. */
lk_status lki_forward_finish(lki_job *job)
{
    lki_rest rest = {.signals = job->signals.fd,
                     .asked   = job->stop_signal != 0,
                     .options = job->host->orders < 0 ? job->options : NULL};
    enum { READS_MAX = 1048576 / LKI_READ_BYTES }; /* enough reads to empty the largest pipe that an
                                                    * unprivileged process can create */

    for (uint32_t s = 0; s < 2; s++) {
        lki_sink *sink = &job->sinks[s];
        for (uint32_t i = 0; i < job->count; i++) {
            lki_stream *stream = &job->workers[i].streams[s];
            for (int reads = 0; reads < READS_MAX && lki_stream_read(stream, sink); reads++)
                lki_sink_drain(sink, false, &rest);
            lki_sink_drain(sink, false, &rest);
            lki_stream_finish(stream, sink);
        }
        lki_sink_drain(sink, true, &rest);
    }
    lki_signals_drop(&job->signals); /* they have interrupted the output */
    return lki_sinks_check(job->sinks);
}
