/* letter.c -- launcher messages ("letters"), to bytes and back.
 *
 * Reader and writer process the same fields in the same order.  One function per field either reads
 * the field from the bytes or appends it, so the two directions cannot disagree about the
 * layout.
 */
#include "launch/rendezvous/letter.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"

static const uint64_t hello_magic = UINT64_C(0x317465656d2d6b6c); /* "lk-meet1" */

/* ---- Fields ------------------------------------------------------------------------------ */

/* Bytes being read or written.  `good` becomes false at the first violation. */
typedef struct {
    const unsigned char *from; /* NULL: writing */
    unsigned char       *to;
    size_t               at, end;
    bool                 good;
} pen;

static void number(pen *p, uint64_t *value, size_t bytes)
{
    LK_ASSERT(p->from != NULL || p->to != NULL);
    if (p->end - p->at < bytes) {
        p->good = false;
        return;
    }
    if (p->from == NULL) {
        for (size_t i = 0; i < bytes; i++)
            p->to[p->at + i] = (unsigned char)(*value >> 8 * i);
    } else {
        *value = 0;
        for (size_t i = 0; i < bytes; i++)
            *value |= (uint64_t)p->from[p->at + i] << 8 * i;
    }
    p->at += bytes;
}

static void octets(pen *p, unsigned char *value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        uint64_t one = value[i];
        number(p, &one, 1);
        value[i] = (unsigned char)one;
    }
}

static void u64(pen *p, uint64_t *value)
{
    number(p, value, 8);
}

/* Reads or writes a 32-bit number in [low, high]. */
static void u32_in(pen *p, uint32_t *value, uint32_t low, uint32_t high)
{
    uint64_t wide = *value;
    number(p, &wide, 4);
    *value = (uint32_t)wide;
    p->good = p->good && *value >= low && *value <= high;
}

static void u32(pen *p, uint32_t *value)
{
    u32_in(p, value, 0, UINT32_MAX);
}

static void i32_in(pen *p, int32_t *value, int32_t low, int32_t high)
{
    uint32_t word = (uint32_t)*value;
    u32(p, &word);
    *value  = (int32_t)word;
    p->good = p->good && *value >= low && *value <= high;
}

static void truth(pen *p, bool *value)
{
    uint32_t word = *value;
    u32_in(p, &word, 0, 1);
    *value = word == 1;
}

static bool is_control(unsigned char c)
{
    return c < 0x20 || c == 0x7f;
}

/* Reads or writes a text.  The bytes after its NUL are zero, so equal letters have equal bytes. */
static void text(pen *p, char *value, size_t bytes)
{
    if (p->end - p->at < bytes) {
        p->good = false;
        return;
    }
    size_t length = 0;
    if (p->from == NULL) {
        length = strnlen(value, bytes - 1);
        memset(p->to + p->at, 0, bytes);
        for (size_t i = 0; i < length; i++)
            p->to[p->at + i] = is_control((unsigned char)value[i]) ? '?' : (unsigned char)value[i];
    } else {
        const char *from = (const char *)p->from + p->at;
        length           = strnlen(from, bytes);
        p->good          = p->good && length < bytes;
        for (size_t i = 0; i < bytes; i++)
            p->good = p->good && (i < length ? !is_control((unsigned char)from[i]) : from[i] == 0);
        if (p->good)
            memcpy(value, from, bytes);
    }
    p->at += bytes;
}

/* ---- Bodies ------------------------------------------------------------------------------ */

enum { SIGNAL_MAX = 64, PID_MAX = INT32_MAX };

static void a_rank(pen *p, uint32_t *rank)
{
    u32_in(p, rank, 0, LKI_RANKS_MAX - 1);
}

static void a_status(pen *p, lk_status *status)
{
    int32_t word = (int32_t)*status;
    i32_in(p, &word, LK_ESTOPPED, LK_EINVAL);
    if (p->good)
        *status = (lk_status)word;
}

static void hello_fields(pen *p, lki_hello_letter *hello)
{
    uint64_t magic = hello_magic;
    u64(p, &magic);
    p->good = p->good && magic == hello_magic;
    u32(p, &hello->protocol);
    text(p, hello->version, sizeof hello->version);
    u32(p, &hello->nodes);
    i32_in(p, &hello->node, -1, INT32_MAX);
    u32(p, &hello->workers);
    u32(p, &hello->world);
    u32(p, &hello->first);
    u64(p, &hello->epoch);
    truth(p, &hello->goes_on);
    text(p, hello->host, sizeof hello->host);
    u32_in(p, &hello->settings.count, 0, LKI_SETTINGS_MAX);
    for (uint32_t i = 0; p->good && i < hello->settings.count; i++)
        u32(p, &hello->settings.hashes[i]);
}

static void job_fields(pen *p, lki_job_letter *job)
{
    uint64_t port = job->port;
    octets(p, job->job, sizeof job->job);
    u32_in(p, &job->nodes, 1, LKI_RANKS_MAX);
    u32_in(p, &job->node, 0, LKI_RANKS_MAX - 1);
    u32_in(p, &job->here_ms, 1, INT32_MAX);
    u32_in(p, &job->silence_ms, 1, INT32_MAX);
    number(p, &port, 2);
    job->port = (uint16_t)port;
    truth(p, &job->late);
    p->good   = p->good && job->node < job->nodes;
}

static void workers_fields(pen *p, lki_range_letter *workers)
{
    a_rank(p, &workers->first);
    u32_in(p, &workers->count, 1, LKI_RANKS_MAX);
    p->good = p->good && workers->first + workers->count <= LKI_RANKS_MAX;
}

static void ended_fields(pen *p, lki_rank_end *ended)
{
    a_rank(p, &ended->rank);
    i32_in(p, &ended->exit_code, 0, 255);
    i32_in(p, &ended->signal, 0, SIGNAL_MAX);
    text(p, ended->loss, sizeof ended->loss);
}

static void verdict_fields(pen *p, lki_verdict *verdict)
{
    a_rank(p, &verdict->culprit);
    truth(p, &verdict->host);
    a_status(p, &verdict->status);
    text(p, verdict->message, sizeof verdict->message);
}

static void outcome_fields(pen *p, lki_outcome *outcome)
{
    u32_in(p, &outcome->weight, 0, LKI_WEIGHT_MAX);
    truth(p, &outcome->failed);
    i32_in(p, &outcome->exit_code, 0, 255);
    i32_in(p, &outcome->signal, 0, SIGNAL_MAX);
    i32_in(p, &outcome->pid, 0, PID_MAX);
    a_rank(p, &outcome->rank);
    text(p, outcome->cause, sizeof outcome->cause);
}

static void group_fields(pen *p, lki_group_letter *group)
{
    u64(p, &group->epoch);
    truth(p, &group->admits);
    for (size_t i = 0; i < LKI_RANKS_MAX / 64; i++)
        u64(p, &group->members.words[i]);
    for (size_t i = 0; i < LKI_RANKS_MAX / 64; i++)
        u64(p, &group->entrants.words[i]);
}

static void standing_fields(pen *p, lki_standing_letter *standing)
{
    u64(p, &standing->epoch);
    u32_in(p, &standing->count, 1, LKI_RANKS_MAX);
}

static void awaited_fields(pen *p, lki_awaited_letter *awaited)
{
    u32_in(p, &awaited->node, 0, LKI_RANKS_MAX - 1);
    truth(p, &awaited->waits);
    text(p, awaited->host, sizeof awaited->host);
}

/* Reads or writes the fields of a letter, except its list.  Returns false for an unknown kind. */
static bool fields(pen *p, lki_letter *letter)
{
    switch (letter->kind) {
    case LKI_LETTER_HELLO: hello_fields(p, &letter->hello); return true;
    case LKI_LETTER_REFUSED:
        a_status(p, &letter->refused.status);
        text(p, letter->refused.message, sizeof letter->refused.message);
        return true;
    case LKI_LETTER_ROSTER: job_fields(p, &letter->job); return true;
    case LKI_LETTER_INTRODUCTIONS: workers_fields(p, &letter->workers); return true;
    case LKI_LETTER_ENDED: ended_fields(p, &letter->ended); return true;
    case LKI_LETTER_VERDICT: verdict_fields(p, &letter->verdict); return true;
    case LKI_LETTER_STOP:
        i32_in(p, &letter->stop.signal, 1, SIGNAL_MAX);
        truth(p, &letter->stop.force);
        return true;
    case LKI_LETTER_ASKED:
        u64(p, &letter->asked.epoch);
        u32_in(p, &letter->asked.timeout_ms, 1, UINT32_MAX);
        return true;
    case LKI_LETTER_GROUP: group_fields(p, &letter->group); return true;
    case LKI_LETTER_STANDING: standing_fields(p, &letter->standing); return true;
    case LKI_LETTER_AWAITED: awaited_fields(p, &letter->awaited); return true;
    case LKI_LETTER_OUTCOME: outcome_fields(p, &letter->outcome); return true;
    case LKI_LETTER_HERE: return true;
    case LKI_LETTER_KINDS: break;
    }
    return false;
}

static void host_fields(pen *p, uint32_t *workers, char host[LKI_HOST_BYTES])
{
    u32_in(p, workers, 1, LKI_RANKS_MAX);
    text(p, host, LKI_HOST_BYTES);
}

static void introduction_fields(pen *p, lki_introduction *worker)
{
    i32_in(p, &worker->pid, 0, PID_MAX);
    text(p, worker->address, sizeof worker->address);
}

/* Returns the number of entries in the letter's list, which follows the fields. *each becomes the
 * size of an entry in bytes. */
static uint32_t list_of(const lki_letter *letter, size_t *each)
{
    *each = letter->kind == LKI_LETTER_ROSTER     ? LKI_LETTER_HOST_BYTES
            : letter->kind == LKI_LETTER_STANDING ? LKI_LETTER_SINCE_BYTES
                                                  : LKI_LETTER_WORKER_BYTES;
    if (letter->kind == LKI_LETTER_ROSTER)
        return letter->job.nodes;
    if (letter->kind == LKI_LETTER_STANDING)
        return letter->standing.count;
    return letter->kind == LKI_LETTER_INTRODUCTIONS ? letter->workers.count : 0;
}

/* ---- Reading ----------------------------------------------------------------------------- */

static bool hosts_are_good(pen *p, uint32_t count)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count && p->good; i++) {
        char     host[LKI_HOST_BYTES];
        uint32_t workers = 0;
        host_fields(p, &workers, host);
        p->good = p->good && (sum += workers) <= LKI_RANKS_MAX;
    }
    return p->good;
}

static bool list_is_good(pen *p, lki_letter *letter)
{
    size_t   each;
    uint32_t count = list_of(letter, &each);

    letter->list = p->from + p->at;
    if (p->end - p->at != count * each)
        return false;
    if (letter->kind == LKI_LETTER_ROSTER)
        return hosts_are_good(p, count);
    if (letter->kind == LKI_LETTER_STANDING)
        return true; /* any number is valid */
    for (uint32_t i = 0; i < count && p->good; i++) {
        lki_introduction worker = { .pid = 0 };
        introduction_fields(p, &worker);
    }
    return p->good;
}

lk_status lki_letter_read(lki_letter *out, const unsigned char *bytes, size_t count, size_t limit,
                          size_t *used)
{
    uint64_t length = 0, kind = 0;
    pen      head   = { .from = bytes, .end = lki_min(count, LKI_LETTER_HEAD_BYTES), .good = true };

    *used = 0;
    number(&head, &length, 4);
    number(&head, &kind, 4);
    if (!head.good)
        return LK_OK;
    if (length > limit - LKI_LETTER_HEAD_BYTES || kind < LKI_LETTER_HELLO
        || kind >= LKI_LETTER_KINDS)
        return lk_fail(LK_EFORMAT, "sent what is no letter of a launcher (kind %llu, %llu bytes)",
                       (unsigned long long)kind, (unsigned long long)length);
    if (count - LKI_LETTER_HEAD_BYTES < length)
        return LK_OK;
    pen body = { .from = bytes, .at = LKI_LETTER_HEAD_BYTES, .good = true,
                 .end = LKI_LETTER_HEAD_BYTES + length };
    *out      = (lki_letter){ .kind = (lki_letter_kind)kind };
    if (!fields(&body, out) || !body.good || !list_is_good(&body, out))
        return lk_fail(LK_EFORMAT, "sent a malformed letter (kind %llu, %llu bytes)",
                       (unsigned long long)kind, (unsigned long long)length);
    *used = body.end;
    return LK_OK;
}

static pen entry(const lki_letter *letter, uint32_t i)
{
    size_t   each;
    uint32_t count = list_of(letter, &each);
    LK_ASSERT(i < count);
    return (pen){ .from = letter->list, .at = i * each, .end = (i + 1) * each, .good = true };
}

uint32_t lki_letter_host(const lki_letter *letter, uint32_t i, char host[LKI_HOST_BYTES])
{
    uint32_t workers = 0;
    pen      p       = entry(letter, i);
    host_fields(&p, &workers, host);
    return workers;
}

lki_introduction lki_letter_introduction(const lki_letter *letter, uint32_t i)
{
    lki_introduction worker = { .pid = 0 };
    pen              p      = entry(letter, i);
    introduction_fields(&p, &worker);
    return worker;
}

uint64_t lki_letter_since(const lki_letter *letter, uint32_t i)
{
    uint64_t since = 0;
    pen      p     = entry(letter, i);
    u64(&p, &since);
    return since;
}

/* ---- Writing ----------------------------------------------------------------------------- */

size_t lki_letter_write(unsigned char out[LKI_LETTER_PLAIN_BYTES], const lki_letter *letter)
{
    lki_letter copy = *letter;
    size_t     each;
    pen        body = { .to = out, .at = LKI_LETTER_HEAD_BYTES, .end = LKI_LETTER_PLAIN_BYTES,
                        .good = true };
    bool known = fields(&body, &copy);
    LK_ASSERT(known && body.good); /* the reader accepts every letter that this process writes */
    uint64_t length = body.at - LKI_LETTER_HEAD_BYTES + list_of(letter, &each) * each;
    uint64_t kind   = letter->kind;
    pen      head   = { .to = out, .end = LKI_LETTER_HEAD_BYTES, .good = true };
    number(&head, &length, 4);
    number(&head, &kind, 4);
    return body.at;
}

size_t lki_letter_add_host(unsigned char *out, uint32_t workers, const char *host)
{
    char name[LKI_HOST_BYTES] = "";
    pen  p = { .to = out, .end = LKI_LETTER_HOST_BYTES, .good = true };
    memcpy(name, host, strnlen(host, sizeof name - 1));
    host_fields(&p, &workers, name);
    return p.at;
}

size_t lki_letter_add_introduction(unsigned char *out, const lki_introduction *worker)
{
    lki_introduction copy = *worker;
    pen p = { .to = out, .end = LKI_LETTER_WORKER_BYTES, .good = true };
    introduction_fields(&p, &copy);
    return p.at;
}

size_t lki_letter_add_since(unsigned char *out, uint64_t since)
{
    pen p = { .to = out, .end = LKI_LETTER_SINCE_BYTES, .good = true };
    u64(&p, &since);
    return p.at;
}

void lki_lost_text(char *out, size_t bytes, const char *host, uint32_t node, lki_roster ranks,
                   const char *did)
{
    char     to[24] = "";
    uint32_t last   = ranks.first + ranks.count - 1;

    if (ranks.count > 1)
        (void)snprintf(to, sizeof to, " to %u", last);
    (void)snprintf(out, bytes, "host %s (node %u, rank%s %u%s) is lost: its launcher %s", host,
                   node, ranks.count > 1 ? "s" : "", ranks.first, to, did);
}
