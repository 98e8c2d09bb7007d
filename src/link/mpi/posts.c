/* posts.c -- posted transfers: messages of MPI from and into the caller's memory.
 *
 * They have a tag of their own.  MPI matches messages with one tag in order.
 *
 * After a failure lki_mpi_cancel() cancels the posted receives whose message has not begun to
 * arrive.  A send cannot be cancelled.  Each cancelled receive is therefore posted again into
 * memory that nobody reads (`dump`), so that the peer's send completes.  If the peer has not sent
 * the message, that receive is cancelled when the peer's end has arrived.
 */
#include "link/mpi/inside.h"

#include "base/memory.h"

/* Receives a message whose receive was cancelled, and drops it. */
static void dump(mpi_link *mpi, uint32_t slot, mpi_posts *posts, uint32_t at)
{
    if (mpi->dump == NULL || mpi->module->receive(mpi->world, slot, slot / SLOTS, TAG_POST,
                                                  mpi->dump, posts->bytes[at]) != NULL)
        return;
    posts->state[at] = DUMPED;
    mpi->open++;
}

void lki_mpi_complete_post(mpi_link *mpi, const lki_mpi_done *done)
{
    mpi_stream *stream    = &mpi->streams[done->slot / SLOTS];
    uint32_t    part      = done->slot % SLOTS;
    bool        receiving = part >= TAKES_AT;
    mpi_posts  *posts     = receiving ? &stream->receives : &stream->sends;
    uint32_t    at        = part - (receiving ? TAKES_AT : SENDS_AT);
    bool        was_lent  = posts->state[at] == POSTED;

    posts->state[at]  = IDLE;
    mpi->lent        -= was_lent;
    stream->completed = true;
    if (was_lent && done->cancelled)
        dump(mpi, done->slot, posts, at);
    else if (done->error != NULL)
        lki_mpi_break(stream, done->error);
}

/* ---- Posting ----------------------------------------------------------------------------- */

static lk_status start_post(mpi_link *mpi, uint32_t peer, mpi_posts *posts, size_t bytes,
                            const char *error)
{
    mpi_stream *stream = &mpi->streams[peer];
    uint32_t    at     = posts->posted % POSTS;

    if (error != NULL)
        lki_mpi_break(stream, error);
    if (stream->why != NULL)
        return lki_mpi_broken(mpi, peer);
    posts->state[at] = POSTED;
    posts->bytes[at] = bytes;
    posts->posted++;
    mpi->open++;
    mpi->lent++;
    return LK_OK;
}

/* Returns the slot of the next post. */
static uint32_t post_slot(uint32_t peer, const mpi_posts *posts, uint32_t first)
{
    LK_ASSERT(posts->posted - posts->collected < POSTS);
    return peer * SLOTS + first + (uint32_t)(posts->posted % POSTS);
}

lk_status lki_mpi_post_send(lki_link *link, uint32_t peer, const void *data, size_t bytes)
{
    mpi_link   *mpi   = lki_mpi_of(link);
    mpi_posts  *posts = &mpi->streams[peer].sends;
    const char *error = NULL;

    if (mpi->streams[peer].why == NULL)
        error = mpi->module->send(mpi->world, post_slot(peer, posts, SENDS_AT), peer, TAG_POST,
                                  data, bytes);
    return start_post(mpi, peer, posts, bytes, error);
}

lk_status lki_mpi_post_receive(lki_link *link, uint32_t peer, void *data, size_t bytes)
{
    mpi_link   *mpi   = lki_mpi_of(link);
    mpi_posts  *posts = &mpi->streams[peer].receives;
    const char *error = NULL;

    mpi->largest = lki_max(mpi->largest, bytes);
    if (mpi->streams[peer].why == NULL)
        error = mpi->module->receive(mpi->world, post_slot(peer, posts, TAKES_AT), peer, TAG_POST,
                                     data, bytes);
    return start_post(mpi, peer, posts, bytes, error);
}

bool lki_mpi_completed(lki_link *link, uint32_t peer, bool receiving)
{
    mpi_stream *stream = &lki_mpi_of(link)->streams[peer];
    mpi_posts  *posts  = receiving ? &stream->receives : &stream->sends;

    if (stream->why != NULL || posts->collected == posts->posted
        || posts->state[posts->collected % POSTS] != IDLE)
        return false;
    posts->collected++;
    return true;
}

/* ---- Cancelling -------------------------------------------------------------------------- */

/* Cancels the receives with a peer that are in this state. */
static void cancel_receives(mpi_link *mpi, uint32_t peer, post_state state)
{
    mpi_posts *posts = &mpi->streams[peer].receives;

    for (uint32_t i = 0; i < POSTS; i++)
        if (posts->state[i] == state)
            (void)mpi->module->cancel(mpi->world, peer * SLOTS + TAKES_AT + i);
}

void lki_mpi_cancel_dumps(mpi_link *mpi, uint32_t peer)
{
    mpi_posts *posts = &mpi->streams[peer].receives;

    cancel_receives(mpi, peer, DUMPED);
    for (uint32_t i = 0; i < POSTS; i++)
        posts->state[i] = posts->state[i] == DUMPED ? IDLE : posts->state[i];
}

bool lki_mpi_cancel(lki_link *link)
{
    mpi_link *mpi   = lki_mpi_of(link);
    int64_t   began = lki_mpi_now_us(), waited = 0;

    if (mpi->lent == 0 || mpi->stuck)
        return !mpi->stuck;
    if (mpi->largest > 0
        && lki_alloc_untouched((void **)&mpi->dump, mpi->largest, "cancelled receives") != LK_OK)
        mpi->dump = NULL;
    for (uint32_t peer = 0; peer < link->ranks; peer++)
        cancel_receives(mpi, peer, POSTED);
    for (; mpi->lent > 0 && waited < CANCEL_MS * 1000; lki_mpi_rest(waited, SLEEP_US)) {
        if (lki_mpi_poll(mpi) != LK_OK)
            break;
        waited = lki_mpi_now_us() - began;
    }
    mpi->stuck = mpi->lent > 0;
    for (uint32_t peer = 0; peer < link->ranks; peer++) {
        mpi_stream *stream         = &mpi->streams[peer];
        stream->sends.collected    = stream->sends.posted;
        stream->receives.collected = stream->receives.posted;
        if (mpi->stuck)
            lki_mpi_break(stream, "MPI did not end its transfers after a failure");
    }
    return !mpi->stuck;
}
