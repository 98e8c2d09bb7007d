/* comm/packet.h -- packets between a worker and its launcher, over the worker's socket.
 *
 * Ownership: a descriptor that arrives with a packet belongs to the receiver.
 * Threads:   any thread may call these functions.  They do not block.
 */
#ifndef LKI_COMM_PACKET_H
#define LKI_COMM_PACKET_H

#include "comm/roster.h"

enum { LKI_ARENA_NAME_BYTES = 52 };

typedef enum {
    LKI_PACKET_NONE,   /* nothing has arrived */
    LKI_PACKET_NUDGE,  /* the control memory has changed */
    LKI_PACKET_NOTE,   /* a line of text for the user */
    LKI_PACKET_ARENA,  /* carries the descriptor of an arena */
    LKI_PACKET_ASK,    /* a rank asks for a rebuild (comm/join/rebuild.c) */
    LKI_PACKET_ANSWER, /* reply to LKI_PACKET_ASK: a new control memory, or a reason for none */
} lki_packet_kind;

/* Announces an arena that rank 0 of a communicator has created. */
typedef struct {
    uint64_t bytes;
    uint64_t group;                       /* the communicator's key */
    uint64_t members[LKI_RANKS_MAX / 64]; /* bit set of the ranks that receive the arena */
    uint32_t index;
    char     name[LKI_ARENA_NAME_BYTES];
} lki_arena_message;

#define LKI_NO_EPOCH UINT64_MAX

typedef struct {
    uint64_t epoch; /* epoch of the failed group; LKI_NO_EPOCH: the rank is new and wants to
                     * enter */
    uint64_t number; /* number that differs between all requests of a rank; the answer repeats it */
    uint32_t timeout_ms;
    uint32_t admits; /* the rank agrees that waiting ranks enter the new group */
} lki_ask;

typedef struct {
    uint64_t  epoch; /* new epoch; on failure, the epoch that has ended */
    uint64_t  number;
    lk_status status;
    char      why[LKI_MESSAGE_BYTES];
} lki_answer;

typedef struct {
    uint64_t magic;
    uint32_t version, kind; /* `kind` is an lki_packet_kind */
    union {
        char              note[LKI_MESSAGE_BYTES];
        lki_arena_message arena;
        lki_ask           ask;
        lki_answer        answer;
    };
} lki_packet;

/* Sends a packet, together with descriptor `fd` unless `fd` is -1.  Never blocks. */
LK_NODISCARD lk_status lki_packet_send(int socket, lki_packet *packet, int fd);

/* Receives one packet.  *fd becomes the descriptor that was sent with the packet, or -1.  *open
 * becomes false if the peer has closed its socket. */
LK_NODISCARD lk_status lki_packet_receive(int socket, lki_packet *packet, int *fd, bool *open);

/* Receives one packet without removing it; lki_packet_drop() removes it. */
LK_NODISCARD lk_status lki_packet_look(int socket, lki_packet *packet, int *fd, bool *open);

/* Removes the packet that lki_packet_look() has returned. */
void lki_packet_drop(int socket);

/* Notifies the launcher of a job on several hosts that the control memory has changed.  The packet
 * is dropped if the launcher does not read its socket, because the launcher is then about to end
 * this process. */
void lki_launcher_nudge(int socket);

/* Sends a line of text for the user to the launcher, if there is one. */
void lki_launcher_note(int socket, const char *text);

/* Opens a descriptor of another process of this user, through /proc.  LK_EUNSUPPORTED if that is
 * not permitted. */
LK_NODISCARD lk_status lki_descriptor_open(int *out, int32_t pid, int fd);

#endif
