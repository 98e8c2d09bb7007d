/* launch/rendezvous/letter.h -- launcher messages ("letters") and their bytes.
 *
 * A letter is a head of 8 bytes (length of the body, kind) and a body.  Numbers are little-endian.
 * Texts have a fixed size, end with a NUL and contain no control characters.  The first letter on a
 * connection is a guest's hello, which begins with a magic number.  A guest may send no other kind,
 * and no longer letter, before its hello.
 *
 *    guest to node 0   hello, introductions, ended, verdict, stop, asked, group, outcome, here
 *    node 0 to guest   refused | roster, introductions, ended, verdict, stop, asked, group,
 *                      awaited, outcome, here; a late guest gets a standing after the roster
 *
 * lki_letter_read() is the only parser of bytes from a connection.  Its results are well-formed:
 * texts are terminated, numbers are in range, lists have the stated length.  Callers check whether
 * the contents make sense.
 */
#ifndef LKI_LAUNCH_RENDEZVOUS_LETTER_H
#define LKI_LAUNCH_RENDEZVOUS_LETTER_H

#include "launch/rendezvous/rendezvous.h"

enum {
    LKI_RENDEZVOUS_PROTOCOL = 5,
    LKI_LETTER_HEAD_BYTES   = 8,
    LKI_LETTER_HOST_BYTES   = 4 + LKI_HOST_BYTES,    /* one node in a roster */
    LKI_LETTER_WORKER_BYTES = 4 + LKI_ADDRESS_BYTES, /* one worker in introductions */
    LKI_LETTER_SINCE_BYTES  = 8,                     /* one rank in a standing */
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
    LKI_LETTER_HERE, /* keep-alive, without content */
    LKI_LETTER_ASKED,
    LKI_LETTER_GROUP, /* a guest sends the surviving ranks of its node; node 0 sends all ranks of
                       * the new group */
    LKI_LETTER_STANDING, /* the members of the group, for a late guest */
    LKI_LETTER_AWAITED,  /* a node waits to enter the group, or has given up */
    LKI_LETTER_KINDS,
} lki_letter_kind;

/* One hash for each of a job's settings, in order. */
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

/* The roster of a job, as sent to one node.  `list` is read with lki_letter_host(). */
typedef struct {
    unsigned char job[LKI_JOB_BYTES];
    uint32_t      node, nodes, here_ms, silence_ms;
    uint16_t      port;
    bool          late; /* the job has begun: a standing follows */
} lki_job_letter;

/* The state of a running job.  `list` is read with lki_letter_since(). */
typedef struct {
    uint64_t epoch;
    uint32_t count; /* number of ranks of the job */
} lki_standing_letter;

typedef struct {
    uint32_t node;
    bool     waits;
    char     host[LKI_HOST_BYTES]; /* current name of the node's host */
} lki_awaited_letter;

typedef struct {
    int32_t signal;
    bool    force;
} lki_stop_letter;

typedef struct {
    uint64_t epoch; /* the epoch that has ended */
    uint32_t timeout_ms;
} lki_asked_letter;

typedef struct {
    uint64_t    epoch; /* from a guest: the epoch that has ended; from node 0: the next epoch */
    bool        admits; /* from a guest: its ranks accept entrants; from node 0: all ranks accept
                         * entrants */
    lki_members members, entrants; /* from node 0: the members of the new group */
} lki_group_letter;

/* The contact data of ranks `first` to first + count - 1.  `list` is read with
 * lki_letter_introduction(). */
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
    const unsigned char *list; /* list of a roster, introductions or a standing; points into the
                                * bytes read */
} lki_letter;

/* Reads one letter from the front of `count` bytes.  *used is its length, or 0 if the letter is
 * incomplete.  Returns LK_EFORMAT unless the bytes begin a letter of at most `limit` bytes. */
LK_NODISCARD lk_status lki_letter_read(lki_letter *out, const unsigned char *bytes, size_t count,
                                       size_t limit, size_t *used);

/* Returns node i's number of workers from a roster, and copies the name of its host. */
uint32_t lki_letter_host(const lki_letter *letter, uint32_t i, char host[LKI_HOST_BYTES]);

/* Returns the i-th worker's contact data from introductions. */
lki_introduction lki_letter_introduction(const lki_letter *letter, uint32_t i);

/* Returns, from a standing, 1 + the epoch in which the i-th rank entered; 0 = not in the group. */
uint64_t lki_letter_since(const lki_letter *letter, uint32_t i);

/* Writes a letter and returns its length.  Replaces control characters in texts by '?'.  For a
 * roster, introductions or a standing, one lki_letter_add_...() call per entry must follow, which
 * returns the number of bytes added.  The length in the head already includes these bytes. */
size_t lki_letter_write(unsigned char out[LKI_LETTER_PLAIN_BYTES], const lki_letter *letter);
size_t lki_letter_add_host(unsigned char *out, uint32_t workers, const char *host);
size_t lki_letter_add_introduction(unsigned char *out, const lki_introduction *worker);
size_t lki_letter_add_since(unsigned char *out, uint64_t since);

/* Formats the message about a lost node.  `did` says what its launcher did, e.g. "closed the
 * connection". */
void lki_lost_text(char *out, size_t bytes, const char *host, uint32_t node, lki_roster ranks,
                   const char *did);

#endif
