/* report/microhttpd.h -- the functions of GNU libmicrohttpd that serve.c calls, loaded at run time.
 *
 * The build needs the header, and `lockstep watch` the library (libmicrohttpd.so.12).  Nothing else
 * of Lockstep does.  Without the header every load fails.
 */
#ifndef LKI_REPORT_MICROHTTPD_H
#define LKI_REPORT_MICROHTTPD_H

#include "base/status.h"

#if __has_include(<microhttpd.h>)
#define LKI_MICROHTTPD 1
#include <microhttpd.h>

#define LKI_MICROHTTPD_TABLE(X)                                                                    \
    X(MHD_add_response_header)                                                                     \
    X(MHD_create_response_from_buffer)                                                             \
    X(MHD_destroy_response)                                                                        \
    X(MHD_lookup_connection_value)                                                                 \
    X(MHD_queue_response)                                                                          \
    X(MHD_start_daemon)                                                                            \
    X(MHD_stop_daemon)

typedef struct {
    void *handle;
#define LKI_MICROHTTPD_FIELD(name) __typeof__(&(name)) name;
    LKI_MICROHTTPD_TABLE(LKI_MICROHTTPD_FIELD)
#undef LKI_MICROHTTPD_FIELD
} lki_microhttpd;

/* Loads the library.  Returns LK_EUNSUPPORTED, with the package to install, if that fails. */
LK_NODISCARD lk_status lki_microhttpd_load(lki_microhttpd *out);
void                   lki_microhttpd_unload(lki_microhttpd *library);

#endif
#endif
