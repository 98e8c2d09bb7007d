/* network.c -- computes the paces of links in each window; see network.h. */
#include "train/observe/network.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/sort.h"

/* A link is judged if it carries at least 1/LITTLE of the busiest link's bytes and at least
 * LEAST_BYTES. */
enum { LITTLE = 4, LEAST_BYTES = 65536 };
static const double TICK = 0.01; /* seconds; the resolution of the kernel's time counters */

/* ---- Opening ----------------------------------------------------------------------------- */

lk_status lki_network_open(lki_network *out, const lk_comm *comm)
{
    size_t hosts = lk_comm_hosts(comm), ranks = lk_comm_size(comm);

    *out = (lki_network){ .ranks = (uint32_t)ranks,
                          .hosts = (uint32_t)hosts,
                          .next  = LKI_WINDOW_STEPS };
    if (hosts <= 1)
        return LK_OK;
    LK_TRY(LKI_NEW(&out->before, ranks, "traffic of links"));
    LK_TRY(LKI_NEW(&out->mine, hosts + 1, "traffic of links"));
    LK_TRY(LKI_NEW(&out->all, ranks * (hosts + 1), "traffic of links"));
    LK_TRY(LKI_NEW(&out->links, hosts * hosts, "traffic of links"));
    LK_TRY(LKI_NEW(&out->rates, ranks * LKI_WINDOW_STEPS, "traffic of links"));
    LK_TRY(LKI_NEW(&out->sorted, lki_max(hosts * hosts, LKI_WINDOW_STEPS), "traffic of links"));
    return LKI_NEW(&out->of, hosts, "traffic of links");
}

void lki_network_close(lki_network *network)
{
    lki_free(network->before);
    lki_free(network->rates);
    lki_free(network->mine);
    lki_free(network->all);
    lki_free(network->links);
    lki_free(network->sorted);
    lki_free(network->of);
    *network = (lki_network){ .hosts = 0 };
}

/* ---- Collecting a window ----------------------------------------------------------------- */

/* Adds the traffic of another rank of the same host.  The connections of both ranks are busy at the
 * same time. */
static void add(lki_traffic *to, lki_traffic more)
{
    to->bytes += more.bytes;
    to->busy = fmax(to->busy, more.busy);
    to->rate = fmax(to->rate, more.rate);
}

/* Returns the traffic between the counts `before` and `now`.  A count below `before` belongs to a
 * new connection, whose count began at 0. */
static lki_traffic since(lki_traffic now, lki_traffic before)
{
    bool less = now.bytes < before.bytes || now.busy < before.busy;
    return less ? now
                : (lki_traffic){ now.bytes - before.bytes, now.busy - before.busy, now.rate };
}

static double lower_median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, lki_by_value);
    return count == 0 ? 0 : values[(count - 1) / 2];
}

static void sample(lki_network *n, const lk_comm *comm)
{
    for (uint32_t r = 0; r < n->ranks; r++) {
        lki_traffic now;
        lki_comm_traffic(comm, r, &now);
        n->rates[r * LKI_WINDOW_STEPS + n->steps % LKI_WINDOW_STEPS] = now.rate;
    }
}

static double median_rate(lki_network *n, uint32_t rank)
{
    memcpy(n->sorted, n->rates + rank * LKI_WINDOW_STEPS, LKI_WINDOW_STEPS * sizeof *n->sorted);
    return lower_median(n->sorted, LKI_WINDOW_STEPS);
}

/* Sums the traffic that this rank has sent in the window, by receiving host. */
static void look(lki_network *n, const lk_comm *comm)
{
    for (uint32_t h = 0; h < n->hosts; h++)
        n->mine[h] = (lki_traffic){ .bytes = 0 };
    n->mine[n->hosts] = (lki_traffic){ .busy = n->seconds };
    for (uint32_t r = 0; r < n->ranks; r++) {
        lki_traffic now;
        lki_comm_traffic(comm, r, &now);
        now.rate = median_rate(n, r);
        add(&n->mine[lk_comm_host(comm, r)], since(now, n->before[r]));
        n->before[r] = now;
    }
}

/* Exchanges the traffic of all ranks and sums it by link.  Uses the duration that rank 0
 * measured. */
static lk_status meet(lki_network *n, lk_comm *comm)
{
    const uint32_t hosts = n->hosts;

    look(n, comm);
    LK_TRY(lk_all_gather(comm, n->mine, n->all, (hosts + 1) * sizeof *n->mine));
    n->seconds = n->all[hosts].busy;
    for (uint32_t i = 0; i < hosts * hosts; i++)
        n->links[i] = (lki_traffic){ .bytes = 0 };
    for (uint32_t r = 0; r < n->ranks; r++)
        for (uint32_t h = 0; h < hosts; h++)
            add(&n->links[lk_comm_host(comm, r) * hosts + h], n->all[r * (hosts + 1) + h]);
    return LK_OK;
}

lk_status lki_network_step(lki_network *n, lk_comm *comm, double seconds, double computing)
{
    if (n->full)
        n->steps = 0;
    n->full = false;
    if (n->hosts <= 1)
        return LK_OK;
    sample(n, comm);
    n->steps++;
    n->seconds += seconds;
    n->computing += computing;
    if (n->steps < n->next)
        return LK_OK;
    LK_TRY(meet(n, comm));
    double wanted = LKI_WINDOW_SECONDS / fmax(n->seconds / n->steps, 1e-6);
    if (n->begun)
        lki_network_judge(n, n->seconds, n->computing);
    n->full    = n->begun;
    n->begun   = true;
    n->next    = (uint32_t)fmax(LKI_WINDOW_STEPS, ceil(wanted));
    n->seconds = n->computing = 0;
    if (!n->full)
        n->steps = 0;
    return LK_OK;
}

/* ---- Judging a window -------------------------------------------------------------------- */

static const lki_traffic *link_of(const lki_network *n, uint32_t from, uint32_t to)
{
    return &n->links[from * n->hosts + to];
}

/* Returns a link's seconds per byte; 0 if it has carried too few bytes. */
static double pace_of(const lki_network *n, lki_pace_by by, uint32_t from, uint32_t to)
{
    const lki_traffic *link = link_of(n, from, to);
    uint64_t           most = LEAST_BYTES;
    for (uint32_t i = 0; i < n->hosts * n->hosts; i++)
        most = lki_max(most, n->links[i].bytes / LITTLE);
    if (from == to || link->bytes < most)
        return 0;
    return by == LKI_BY_TIME ? fmax(link->busy, TICK) / (double)link->bytes
           : link->rate > 0  ? 1 / link->rate
                             : 0;
}

/* Returns the lower median of the paces of links from host `from` to host `to`.  n->hosts stands
 * for any host except `without`.  Returns 0 if no such link has carried enough bytes. */
static double median_of(lki_network *n, lki_pace_by by, uint32_t from, uint32_t to,
                        uint32_t without)
{
    uint32_t count = 0;
    for (uint32_t a = 0; a < n->hosts; a++)
        for (uint32_t b = 0; b < n->hosts; b++) {
            bool wanted = (from == n->hosts || a == from) && (to == n->hosts || b == to) &&
                          a != without && b != without;
            double pace = wanted ? pace_of(n, by, a, b) : 0;
            if (pace > 0)
                n->sorted[count++] = pace;
        }
    return lower_median(n->sorted, count);
}

/* Returns the largest excess time of a host's outgoing or incoming links.  The excess time of a
 * link is its busy time minus the time that its bytes would take at `pace`. */
static double excess_of(const lki_network *n, uint32_t host, bool out, double pace)
{
    double most = 0;
    for (uint32_t h = 0; h < n->hosts; h++) {
        const lki_traffic *link = out ? link_of(n, host, h) : link_of(n, h, host);
        most                    = fmax(most, link->busy - pace * (double)link->bytes);
    }
    return most;
}

/* The duration of a window. */
typedef struct {
    double seconds, computing;
} window;

/* Compares the paces of a host's outgoing or incoming links with the paces `against`.  With two
 * hosts, compares the link between them.  Marks the host if it is slow. */
static void weigh(lki_network *n, const window *w, uint32_t host, bool out,
                  const double against[LKI_PACES])
{
    lki_slow_host *of   = &n->of[n->hosts == 2 ? 0 : host];
    double         save = fmin(excess_of(n, host, out, against[LKI_BY_TIME]),
                               w->seconds - w->computing);
    double         pace[LKI_PACES];

    for (lki_pace_by by = 0; by < LKI_PACES; by++) {
        pace[by] = out ? median_of(n, by, host, n->hosts, n->hosts)
                       : median_of(n, by, n->hosts, host, n->hosts);
        if (!(against[by] > 0) || pace[by] <= LKI_SLOW_LINK * against[by])
            return;
    }
    double times = pace[LKI_BY_TIME] / against[LKI_BY_TIME];
    if (w->seconds <= LKI_SLOW * (w->seconds - save) || times <= of->times)
        return;
    of->slow  = true;
    of->pace  = pace[LKI_BY_TIME];
    of->times = times;
    of->share = save / w->seconds;
}

static void weigh_host(lki_network *n, const window *w, uint32_t host)
{
    double others[LKI_PACES];
    for (lki_pace_by by = 0; by < LKI_PACES; by++)
        others[by] = median_of(n, by, n->hosts, n->hosts, host);
    weigh(n, w, host, true, others);
    weigh(n, w, host, false, others);
}

static void weigh_link(lki_network *n, const window *w, uint32_t from)
{
    const double best[LKI_PACES] = { n->best[LKI_BY_TIME][from], n->best[LKI_BY_RATE][from] };

    weigh(n, w, from, true, best);
    for (lki_pace_by by = 0; by < LKI_PACES; by++) {
        double pace = pace_of(n, by, from, 1 - from);
        if (pace > 0 && (!(best[by] > 0) || pace < best[by]))
            n->best[by][from] = pace;
    }
}

void lki_network_judge(lki_network *n, double seconds, double computing)
{
    const window w = { seconds, computing };

    for (uint32_t h = 0; h < n->hosts; h++) {
        n->of[h].was_slow = n->of[h].slow;
        n->of[h].slow     = false;
        n->of[h].times    = 0;
    }
    for (uint32_t h = 0; h < n->hosts; h++)
        if (n->hosts == 2)
            weigh_link(n, &w, h);
        else
            weigh_host(n, &w, h);
    for (uint32_t h = 0; h < n->hosts; h++) {
        n->of[h].windows += n->of[h].slow;
        n->of[h].worst = fmax(n->of[h].worst, n->of[h].times);
    }
    n->windows++;
}
