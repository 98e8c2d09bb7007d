/* rendezvous/letter.h -- what launchers write to each other, as bytes.
 *
 * A letter is a head of 8 bytes (length of the body, kind) and a body; numbers are little-endian,
 * texts have a fixed size, end with a NUL and hold no control characters.  The first letter on a
 * connection is a guest's hello, which begins with a magic number; whoever has not said hello may
 * send nothing else, and nothing longer.
 *
 *     guest to node 0   hello, introductions, ended, verdict, stop, asked, group, outcome, here
 *     node 0 to guest   refused | roster, introductions, ended, verdict, stop, asked, group,
 *                       awaited, outcome, here; to one that has come late a standing behind the
 *                       roster
 *
 * lki_letter_read() is the only thing that looks at bytes from a connection.  What it yields is
 * well-formed: texts are terminated, numbers are in range, lists have the length they say.
 * Whether they are true is for others to check.
 */
#ifndef LKI_RENDEZVOUS_LETTER_H
#define LKI_RENDEZVOUS_LETTER_H

#include "comm/rendezvous.h"

enum {
    LKI_RENDEZVOUS_PROTOCOL = 5,
    LKI_LETTER_HEAD_BYTES   = 8,
    LKI_LETTER_HOST_BYTES   = 4 + LKI_HOST_BYTES,    /* of one node in a roster */
    LKI_LETTER_WORKER_BYTES = 4 + LKI_ADDRESS_BYTES, /* of one worker in introductions */
    LKI_LETTER_SINCE_BYTES  = 8,                     /* of one worker in a standing */
    LKI_LETTER_BYTES_MAX    = 256 + LKI_RANKS_MAX * LKI_LETTER_WORKER_BYTES,
    LKI_LETTER_PLAIN_BYTES  = 1024, /* room for any letter without its list */
    LKI_HELLO_BYTES_MAX     = 512,
    LKI_VERSION_BYTES       = 16,
};

typedef enum {
    LKI_LETTER_HELLO = 1,
    LKI_LETTER_REFUSED,
    LKI_LETTER_ROSTER,
    LKI_LETTER_INTRODUCTIONS,
    LKI_LETTER_ENDED,
    LKI_LETTER_VERDICT,
    LKI_LETTER_STOP,
    LKI_LETTER_OUTCOME,
    LKI_LETTER_HERE, /* nothing to say, but alive */
    LKI_LETTER_ASKED,
    LKI_LETTER_GROUP, /* of a guest: who of its ranks goes on; of node 0: who does */
    LKI_LETTER_STANDING, /* who is in the group, for a guest that has come late */
    LKI_LETTER_AWAITED,  /* a node waits for the group to let it in, or does not any more */
    LKI_LETTER_KINDS,
} lki_letter_kind;

/* Of each of a job's settings a hash, in order. */
typedef struct {
    uint32_t count, hashes[LKI_SETTINGS_MAX];
} lki_settings_letter;

typedef struct {
    uint32_t protocol, nodes, workers, world, first;
    int32_t  node; /* -1 = any */
    uint64_t epoch;
    bool     goes_on;
    char     version[LKI_VERSION_BYTES], host[LKI_HOST_BYTES];
    lki_settings_letter settings;
} lki_hello_letter;

/* The roster of a job for one node.  `list` is read with lki_letter_host(). */
typedef struct {
    unsigned char job[LKI_JOB_BYTES];
    uint32_t      node, nodes, here_ms, silence_ms;
    uint16_t      port;
    bool          late; /* the job has begun: a standing follows */
} lki_job_letter;

/* `list` is read with lki_letter_since(). */
typedef struct {
    uint64_t epoch;
    uint32_t count; /* ranks of the job */
} lki_standing_letter;

typedef struct {
    uint32_t node;
    bool     waits;
    char     host[LKI_HOST_BYTES]; /* what its host is called now */
} lki_awaited_letter;

typedef struct {
    int32_t signal;
    bool    force;
} lki_stop_letter;

typedef struct {
    uint64_t epoch; /* that is over */
    uint32_t timeout_ms;
} lki_asked_letter;

typedef struct {
    uint64_t    epoch; /* of a guest: that is over; of node 0: that begins */
    bool        admits; /* of a guest: its ranks would have others enter; of node 0: they do */
    lki_members members, entrants; /* of node 0: these are members */
} lki_group_letter;

/* Rank `first` and so on; `list` is read with lki_letter_introduction(). */
typedef struct {
    uint32_t first, count;
} lki_range_letter;

typedef struct {
    lki_letter_kind kind;
    union {
        lki_hello_letter        hello;
        lk_error         refused; /* `where` is NULL */
        lki_job_letter   job;
        lki_range_letter workers;
        lki_rank_end     ended;
        lki_verdict      verdict;
        lki_stop_letter  stop;
        lki_asked_letter asked;
        lki_group_letter group;
        lki_standing_letter standing;
        lki_awaited_letter  awaited;
        lki_outcome      outcome;
    };
    const unsigned char *list; /* of a roster or of introductions: in the bytes that were read */
} lki_letter;

/* Reads one letter from the front of `count` bytes.  *used is its length, or 0 while it has not
 * come whole.  LK_EFORMAT for what is no letter, or one of more than `limit` bytes. */
LK_NODISCARD lk_status lki_letter_read(lki_letter *out, const unsigned char *bytes, size_t count,
                                       size_t limit, size_t *used);

/* Of a roster: how many workers node `i` has, and its host's name. */
uint32_t lki_letter_host(const lki_letter *letter, uint32_t i, char host[LKI_HOST_BYTES]);

/* Of introductions: the i-th worker's. */
lki_introduction lki_letter_introduction(const lki_letter *letter, uint32_t i);

/* Of a standing: 1 + the epoch in which the i-th rank entered; 0 = it is not in the group. */
uint64_t lki_letter_since(const lki_letter *letter, uint32_t i);

/* Writes a letter; returns its length.  Control characters in texts become '?'.  A roster or
 * introductions go on with a call for each entry, which returns the bytes that were added; the
 * head already counts them. */
size_t lki_letter_write(unsigned char out[LKI_LETTER_PLAIN_BYTES], const lki_letter *letter);
size_t lki_letter_add_host(unsigned char *out, uint32_t workers, const char *host);
size_t lki_letter_add_introduction(unsigned char *out, const lki_introduction *worker);
size_t lki_letter_add_since(unsigned char *out, uint64_t since);

/* What is said of a node whose launcher `did` something, such as "closed the connection". */
void lki_lost_text(char *out, size_t bytes, const char *host, uint32_t node, lki_roster ranks,
                   const char *did);

#endif
