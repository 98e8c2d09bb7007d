/* chaos.c -- faults injected into read() and write() before they reach the inner link.
 *
 * A paused or silent stream is not watched on the inner link, even if the caller watches it.
 * Otherwise wait() would report the stream all the time.
 */
#include "link/chaos.h"

#include "base/memory.h"

typedef struct {
    bool    reading, writing; /* directions that the caller watches */
    bool    silent, broken[2];
    int64_t rests_until_ms; /* end of the pause; 0: not paused */
} chaos_stream;

typedef struct {
    lki_link      super;
    lki_link     *inner;
    lki_chaos     options;
    uint64_t      random, calls, writes, bytes;
    uint64_t      resting;
    chaos_stream *streams;
} chaos_link;

typedef enum { READ, WRITE } direction;

static const lki_link_ops operations;

static chaos_link *chaos_of(lki_link *link)
{
    LK_ASSERT(link->ops == &operations);
    return (chaos_link *)(void *)link;
}

static chaos_stream *stream_of(const chaos_link *self, uint32_t peer, uint32_t stream)
{
    return &self->streams[(size_t)peer * self->super.streams + stream];
}

/* Marsaglia's xorshift64. */
static uint64_t draw(chaos_link *self, uint64_t below)
{
    self->random ^= self->random << 13;
    self->random ^= self->random >> 7;
    self->random ^= self->random << 17;
    return (self->random >> 11) % below;
}

/* Watches a stream on the inner link in the directions that the caller watches.  Watches neither
 * direction while the stream is paused or silent. */
static void apply(chaos_link *self, uint32_t peer, uint32_t stream)
{
    const chaos_stream *s    = stream_of(self, peer, stream);
    bool                open = !s->silent && s->rests_until_ms == 0;

    self->inner->ops->watch(self->inner, peer, stream, open && s->reading, open && s->writing);
}

/* Applies the faults to one call.  Reduces *bytes to the number that the call may move. */
static lk_status befall(chaos_link *self, uint32_t peer, uint32_t stream, direction way,
                        size_t *bytes)
{
    chaos_stream *s = stream_of(self, peer, stream);

    self->calls++;
    if (self->calls == self->options.break_nth)
        s->broken[way] = true;
    if (s->broken[way])
        return lk_fail(LK_EPEER, "stream %u %s rank %u broke: chaos", stream,
                       way == READ ? "from" : "to", peer);
    if (self->calls == self->options.silence_nth) {
        s->silent = true;
        apply(self, peer, stream);
    }
    if (s->silent)
        return LK_OK;
    if (s->rests_until_ms != 0 || draw(self, 256) < self->options.refuse)
        *bytes = 0;
    else if (*bytes > 1 && draw(self, 256) < self->options.split)
        *bytes = 1;
    if (s->rests_until_ms == 0 && self->options.pause_ms > 0
        && draw(self, 256) < self->options.pause) {
        s->rests_until_ms = self->inner->ops->now_ms(self->inner) + 1
                            + (int64_t)draw(self, (uint64_t)self->options.pause_ms);
        self->resting++;
        apply(self, peer, stream);
    }
    return LK_OK;
}

/* Sends the bytes of lki_chaos.insert just before write number lki_chaos.insert_nth. */
static lk_status insert(chaos_link *self, uint32_t peer, uint32_t stream)
{
    struct iovec what = { (void *)(uintptr_t)self->options.insert, self->options.insert_bytes };
    size_t       moved;

    if (++self->writes != self->options.insert_nth)
        return LK_OK;
    return self->inner->ops->write(self->inner, peer, stream, &what, 1, &moved);
}

static lk_status chaos_write(lki_link *link, uint32_t peer, uint32_t stream,
                             const struct iovec *parts, int count, size_t *moved)
{
    chaos_link *self  = chaos_of(link);
    size_t      bytes = 0, may;

    for (int i = 0; i < count; i++)
        bytes += parts[i].iov_len;
    *moved = 0;
    may    = bytes;
    LK_TRY(befall(self, peer, stream, WRITE, &may));
    if (stream_of(self, peer, stream)->silent) {
        *moved = bytes;
        return LK_OK;
    }
    LK_TRY(insert(self, peer, stream));
    if (may == bytes)
        return self->inner->ops->write(self->inner, peer, stream, parts, count, moved);
    while (may == 1 && parts->iov_len == 0)
        parts++;
    struct iovec one = { parts->iov_base, may };
    return may == 0 ? LK_OK : self->inner->ops->write(self->inner, peer, stream, &one, 1, moved);
}

/* Flips a bit of the received byte with the number damage_nth, if `data` contains this byte. */
static void damage(chaos_link *self, unsigned char *data, size_t bytes)
{
    uint64_t nth = self->options.damage_nth;

    if (nth > self->bytes && nth <= self->bytes + bytes)
        data[nth - self->bytes - 1] ^= (unsigned char)(1 << draw(self, 8));
    self->bytes += bytes;
}

static lk_status chaos_read(lki_link *link, uint32_t peer, uint32_t stream, void *data,
                            size_t bytes, size_t *moved)
{
    chaos_link *self = chaos_of(link);

    *moved = 0;
    LK_TRY(befall(self, peer, stream, READ, &bytes));
    if (bytes == 0 || stream_of(self, peer, stream)->silent)
        return LK_OK;
    LK_TRY(self->inner->ops->read(self->inner, peer, stream, data, bytes, moved));
    damage(self, data, *moved);
    return LK_OK;
}

static void chaos_watch(lki_link *link, uint32_t peer, uint32_t stream, bool reading,
                        bool writing)
{
    chaos_link *self = chaos_of(link);

    stream_of(self, peer, stream)->reading = reading;
    stream_of(self, peer, stream)->writing = writing;
    apply(self, peer, stream);
}

/* Ends expired pauses.  Returns the time until the next pause ends, at most `ms`. */
static int64_t end_rests(chaos_link *self, int64_t ms)
{
    int64_t now = self->resting == 0 ? 0 : self->inner->ops->now_ms(self->inner);

    for (uint32_t peer = 0; peer < self->super.ranks && self->resting > 0; peer++)
        for (uint32_t i = 0; peer != self->super.rank && i < self->super.streams; i++) {
            chaos_stream *s = stream_of(self, peer, i);
            if (s->rests_until_ms == 0)
                continue;
            if (s->rests_until_ms <= now) {
                s->rests_until_ms = 0;
                self->resting--;
                apply(self, peer, i);
            } else if (s->rests_until_ms - now < ms) {
                ms = s->rests_until_ms - now;
            }
        }
    return ms;
}

static lk_status chaos_wait(lki_link *link, int64_t ms, lki_ready *ready, uint32_t capacity,
                            uint32_t *count)
{
    chaos_link *self  = chaos_of(link);
    int64_t     until = self->inner->ops->now_ms(self->inner) + ms, left = ms;

    for (;;) {
        LK_TRY(self->inner->ops->wait(self->inner, end_rests(self, left), ready, capacity,
                                      count));
        left = until - self->inner->ops->now_ms(self->inner);
        if (*count > 0 || left <= 0)
            return LK_OK;
    }
}

static int64_t chaos_now_ms(const lki_link *link)
{
    const lki_link *inner = ((const chaos_link *)(const void *)link)->inner;
    return inner->ops->now_ms(inner);
}

static void chaos_traffic(const lki_link *link, uint32_t peer, lki_traffic *out)
{
    const lki_link *inner = ((const chaos_link *)(const void *)link)->inner;
    *out                  = (lki_traffic){ .bytes = 0 };
    if (inner->ops->traffic != NULL)
        inner->ops->traffic(inner, peer, out);
}

static void chaos_close(lki_link *link)
{
    chaos_link *self = chaos_of(link);

    self->inner->ops->close(self->inner);
    lki_free(self->streams);
    lki_free(self);
}

static const lki_link_ops operations = {
    .name    = "chaos",
    .write   = chaos_write,
    .read    = chaos_read,
    .watch   = chaos_watch,
    .wait    = chaos_wait,
    .now_ms  = chaos_now_ms,
    .traffic = chaos_traffic,
    .close   = chaos_close,
};

lk_status lki_chaos_open(lki_link **out, lki_link *inner, const lki_chaos *chaos)
{
    size_t      count = (size_t)inner->ranks * inner->streams;
    chaos_link *self  = NULL;

    *out         = NULL;
    lk_status st = LKI_NEW(&self, 1, "a chaotic link");
    if (st == LK_OK)
        st = LKI_NEW(&self->streams, count, "its streams");
    if (st != LK_OK) {
        lki_free(self);
        inner->ops->close(inner);
        return st;
    }
    self->super     = *inner;
    self->super.ops = &operations;
    self->inner     = inner;
    self->options   = *chaos;
    self->random    = (chaos->seed + 1) * UINT64_C(0x9e3779b97f4a7c15);
    for (size_t i = 0; i < count; i++)
        self->streams[i].reading = true;
    *out = &self->super;
    return LK_OK;
}
