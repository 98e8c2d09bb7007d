/* link/mpi/inside.h -- declarations shared by the files of the link: link.c (streams, waiting,
 * lifetime) and posts.c (posted transfers). */
#ifndef LKI_LINK_MPI_INSIDE_H
#define LKI_LINK_MPI_INSIDE_H

#include <time.h>

#include "link/mpi/link.h"

enum {
    CHUNK     = (1 << 16) + (1 << 12), /* an eager message with its header (wire/frame.h) */
    OUT       = 4, /* outgoing chunks of a stream in flight */
    IN        = 4, /* incoming chunks of a stream in flight */
    POSTS     = LKI_LINK_POSTS,
    ENDS_AT   = OUT + IN, /* requests of a stream: outgoing chunks, incoming chunks, empty messages
                           * at the end, posted sends, posted receives */
    SENDS_AT  = ENDS_AT + IN,
    TAKES_AT  = SENDS_AT + POSTS,
    SLOTS     = TAKES_AT + POSTS,
    CANCEL_MS = 2000,
    YIELD_US  = 2000,
    SLEEP_US  = 1000,
    LINGER_MS = 5000,
    ENDING_MS = 500, /* if the launcher is ending the job, too */
};

enum { TAG_CHUNK, TAG_POST };

typedef enum { IDLE, POSTED, DUMPED } post_state;

/* The posts with a peer in one direction.  Post number n is at index n % POSTS. */
typedef struct {
    post_state state[POSTS];
    size_t     bytes[POSTS];
    uint64_t   posted, collected; /* numbers of posts */
} mpi_posts;

/* Both directions of a stream with one peer, and the posts with this peer. */
typedef struct {
    mpi_posts      sends, receives;
    bool           completed; /* a post has completed since wait() reported one */
    unsigned char *out; /* OUT chunks, allocated by the first write */
    unsigned char *in;  /* IN chunks */
    bool           sending[OUT];
    bool           arrived[IN];
    size_t         bytes[IN]; /* number of bytes received in each chunk */
    uint32_t       first;     /* chunk to read next */
    size_t         taken;     /* number of bytes already read from the first chunk */
    bool           heard;     /* at least one byte was received */
    bool           reading, writing; /* directions that the caller watches */
    char          *why;              /* reason why the stream is broken; NULL: not broken */
} mpi_stream;

typedef struct {
    lki_link              super;
    const lki_mpi_module *module;
    lki_mpi_world        *world;
    mpi_stream           *streams; /* of all peers; this rank's entry is unused */
    uint32_t              open;    /* number of open requests */
    uint32_t              lent;    /* number of posts whose memory MPI still has */
    size_t                largest; /* largest posted receive */
    unsigned char        *dump;    /* memory for cancelled receives */
    bool                  stuck;   /* cancel() has failed: MPI is called no more */
    uint32_t              turn;    /* peer that wait() checks first */
    int64_t               moved_us; /* time of the last completion of a request */
    unsigned char         nothing; /* buffer of empty messages */
} mpi_link;

static inline mpi_link *lki_mpi_of(const lki_link *link)
{
    union {
        const lki_link *link;
        mpi_link       *mpi;
    } cast = { link };
    return cast.mpi;
}

static inline int64_t lki_mpi_now_us(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* ---- link.c ------------------------------------------------------------------------------ */

/* Marks a stream as broken, unless it is broken already. */
void lki_mpi_break(mpi_stream *stream, const char *why);

/* Returns LK_EPEER with the reason why a stream is broken. */
lk_status lki_mpi_broken(const mpi_link *mpi, uint32_t peer);

/* Handles requests that have completed, without waiting. */
LK_NODISCARD lk_status lki_mpi_poll(mpi_link *mpi);

/* Yields the processor or sleeps for at most `left_us`.  The sleep is longer if nothing has moved
 * for longer (`idle_us`). */
void lki_mpi_rest(int64_t idle_us, int64_t left_us);

/* ---- posts.c ----------------------------------------------------------------------------- */

/* The calls of lki_link_ops with these names. */
lk_status lki_mpi_post_send(lki_link *link, uint32_t peer, const void *data, size_t bytes);
lk_status lki_mpi_post_receive(lki_link *link, uint32_t peer, void *data, size_t bytes);
bool      lki_mpi_completed(lki_link *link, uint32_t peer, bool receiving);
bool      lki_mpi_cancel(lki_link *link);

/* Handles a completed request of a post. */
void lki_mpi_complete_post(mpi_link *mpi, const lki_mpi_done *done);

/* Cancels the receives of cancelled posts with a peer that has ended. */
void lki_mpi_cancel_dumps(mpi_link *mpi, uint32_t peer);

#endif
