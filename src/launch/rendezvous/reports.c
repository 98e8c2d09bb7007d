/* reports.c -- a launcher's end of the rendezvous: queries and outgoing letters. */
#include "launch/rendezvous/inside.h"

#include "base/file.h"
#include "base/memory.h"

/* ---- Queries ----------------------------------------------------------------------------- */

uint32_t lki_rendezvous_self(const lki_rendezvous *r)
{
    return r->self;
}

uint32_t lki_rendezvous_nodes(const lki_rendezvous *r)
{
    return r->nodes;
}

const lki_node *lki_rendezvous_node(const lki_rendezvous *r, uint32_t node)
{
    LK_ASSERT(node < r->nodes);
    return &r->roster[node];
}

const unsigned char *lki_rendezvous_job(const lki_rendezvous *r)
{
    return r->job;
}

const lki_standing *lki_rendezvous_standing(const lki_rendezvous *r)
{
    return r->late ? &r->standing : NULL;
}

uint16_t lki_rendezvous_port(const lki_rendezvous *r)
{
    return r->port;
}

const char *lki_rendezvous_address(const lki_rendezvous *r)
{
    return r->server != NULL ? lki_server_address(r->server) : r->address.text;
}

const lki_introduction *lki_rendezvous_introduction(const lki_rendezvous *r, uint32_t rank)
{
    LK_ASSERT(rank < r->roster[0].roster.world);
    return &r->workers[rank];
}

uint32_t lki_rendezvous_refused(const lki_rendezvous *r)
{
    return r->server != NULL ? lki_server_refused(r->server) : 0;
}

const char *lki_rendezvous_last_refused(const lki_rendezvous *r)
{
    return r->server != NULL ? lki_server_last_refused(r->server) : "";
}

/* ---- Reports to the others --------------------------------------------------------------- */

void lki_rendezvous_introduce(lki_rendezvous *r, const lki_introduction *workers)
{
    void *bytes;

    if (r->stage != LKI_MET)
        return;
    lki_roster mine   = r->roster[r->self].roster;
    lki_letter letter = { .kind = LKI_LETTER_INTRODUCTIONS, .workers = { mine.first, mine.count } };
    if (lki_alloc(&bytes, LKI_LETTER_BYTES_MAX, "introductions of workers") != LK_OK) {
        lki_rendezvous_lose(r, lk_error_last()->message);
        return;
    }
    size_t used = lki_letter_write(bytes, &letter);
    for (uint32_t i = 0; i < mine.count; i++)
        used += lki_letter_add_introduction((unsigned char *)bytes + used, &workers[i]);
    lki_rendezvous_say(r, bytes, used);
    lki_free(bytes);
}

void lki_rendezvous_ended(lki_rendezvous *r, const lki_rank_end *end)
{
    if (r->stage == LKI_MET)
        lki_rendezvous_write(r, &(lki_letter){ .kind = LKI_LETTER_ENDED, .ended = *end });
}

void lki_rendezvous_verdict(lki_rendezvous *r, const lki_verdict *verdict)
{
    if (r->stage == LKI_MET)
        lki_rendezvous_write(r, &(lki_letter){ .kind = LKI_LETTER_VERDICT, .verdict = *verdict });
}

void lki_rendezvous_stop(lki_rendezvous *r, int signal, bool force)
{
    lki_letter letter = { .kind = LKI_LETTER_STOP, .stop = { signal, force } };
    if (r->stage == LKI_MET)
        lki_rendezvous_write(r, &letter);
}

void lki_rendezvous_asked(lki_rendezvous *r, uint64_t epoch, uint32_t timeout_ms)
{
    lki_letter letter = { .kind = LKI_LETTER_ASKED, .asked = { epoch, timeout_ms } };
    if (r->stage == LKI_MET)
        lki_rendezvous_write(r, &letter);
}

void lki_rendezvous_go_on(lki_rendezvous *r, uint64_t epoch, const lki_members *members,
                          const lki_members *entrants)
{
    lki_letter letter = { .kind  = LKI_LETTER_GROUP,
                          .group = { .epoch = epoch, .admits = entrants != NULL,
                                     .members = *members } };
    if (entrants != NULL)
        letter.group.entrants = *entrants;
    if (r->stage == LKI_MET)
        lki_rendezvous_write(r, &letter);
}

void lki_rendezvous_leave(lki_rendezvous *r)
{
    LK_ASSERT(r->finished && r->server == NULL);
    if (r->stage != LKI_MET)
        return;
    r->leaving = true;
    r->left    = lki_now_ms();
    lki_line_finish(&r->line, r->left);
}

bool lki_rendezvous_has_left(const lki_rendezvous *r)
{
    return r->stage != LKI_MET || lki_now_ms() - r->left > LKI_LINGER_MS;
}

bool lki_rendezvous_lost(const lki_rendezvous *r)
{
    return r->stage == LKI_LOST;
}

void lki_rendezvous_finish(lki_rendezvous *r, const lki_outcome *outcome)
{
    if (r->finished)
        return;
    r->finished = true;
    r->outcome  = *outcome;
    if (r->stage == LKI_MET)
        lki_rendezvous_write(r, &(lki_letter){ .kind = LKI_LETTER_OUTCOME, .outcome = *outcome });
}
