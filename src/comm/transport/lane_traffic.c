/* lane_traffic.c -- what TCP knows of a connection.
 *
 * The kernel counts the time in which a connection has bytes that are not acknowledged, in ticks of
 * 1 to 10 ms, and of this the time for which the reader's window was full (tcp_info; Linux 4.9).
 * The first without the second is the network's but for what acknowledgements are delayed when the
 * reader does not run; and the rate at which bytes have arrived, when there were enough of them,
 * does not know of that.
 */
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

#include "comm/transport/lane.h"

void lki_lane_traffic(const lki_lane *lane, lki_traffic *out)
{
    struct tcp_info info  = { .tcpi_state = 0 };
    socklen_t       bytes = sizeof info;

    *out = (lki_traffic){ .bytes = 0 };
    if (lane->fd < 0 || getsockopt(lane->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 ||
        bytes < offsetof(struct tcp_info, tcpi_sndbuf_limited))
        return;
    out->bytes = info.tcpi_bytes_acked;
    out->rate  = (double)info.tcpi_delivery_rate;
    out->busy  = 1e-6 * (double)(info.tcpi_busy_time - info.tcpi_rwnd_limited);
}
