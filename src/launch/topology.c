/* topology.c -- reads the machine's topology from hwloc, which is loaded on demand. */
#include <stdio.h>

#include "base/symbols.h"
#include "launch/job/cores.h"

#if defined(__has_include)
#if __has_include(<hwloc.h>) && __has_include(<hwloc/autogen/config.h>)
#define HAVE_HWLOC
#endif
#endif

#ifdef HAVE_HWLOC

#include <dlfcn.h>
#include <hwloc.h>

static const char LIBRARY[] = "libhwloc.so.15"; /* soname of all hwloc 2.x */

/* The functions that are used. */
#define HWLOC_TABLE(X)                                                                           \
    X(hwloc_get_api_version)                                                                     \
    X(hwloc_topology_init)                                                                       \
    X(hwloc_topology_load)                                                                       \
    X(hwloc_topology_destroy)                                                                    \
    X(hwloc_get_type_depth)                                                                      \
    X(hwloc_get_nbobjs_by_depth)                                                                 \
    X(hwloc_get_obj_by_depth)                                                                    \
    X(hwloc_bitmap_isset)

typedef struct {
#define ROW(name) __typeof__(&name) name;
    HWLOC_TABLE(ROW)
#undef ROW
    void            *handle;
    hwloc_topology_t topology;
} library;

static bool load(library *l)
{
    static const lki_symbol functions[] = {
#define ROW(name) { #name, offsetof(library, name) },
        HWLOC_TABLE(ROW)
#undef ROW
    };

    l->handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (l->handle == NULL || lki_symbols_find(l, l->handle, functions,
                                              sizeof functions / sizeof functions[0]) != NULL)
        return false;
    if (l->hwloc_topology_init(&l->topology) != 0) {
        l->topology = NULL;
        return false;
    }
    return l->hwloc_topology_load(l->topology) == 0;
}

static void unload(library *l)
{
    if (l->topology != NULL)
        l->hwloc_topology_destroy(l->topology);
    if (l->handle != NULL)
        (void)dlclose(l->handle);
}

static bool holds(const library *l, const hwloc_obj_t object, const cpu_set_t *allowed)
{
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, allowed) && l->hwloc_bitmap_isset(object->cpuset, cpu))
            return true;
    return false;
}

/* Counts the objects of a type that contain at least one of the allowed cores. */
static uint32_t count(const library *l, hwloc_obj_type_t type, const cpu_set_t *allowed)
{
    int      depth = l->hwloc_get_type_depth(l->topology, type);
    unsigned all   = l->hwloc_get_nbobjs_by_depth(l->topology, depth);
    uint32_t found = 0;

    for (unsigned i = 0; i < all; i++)
        found += holds(l, l->hwloc_get_obj_by_depth(l->topology, depth, i), allowed);
    return found;
}

/* Returns the lowest NUMA node that is local to a core. */
static uint16_t node_of(const library *l, unsigned cpu)
{
    unsigned all = l->hwloc_get_nbobjs_by_depth(l->topology, HWLOC_TYPE_DEPTH_NUMANODE);

    for (unsigned i = 0; i < all; i++) {
        hwloc_obj_t node = l->hwloc_get_obj_by_depth(l->topology, HWLOC_TYPE_DEPTH_NUMANODE, i);
        if (l->hwloc_bitmap_isset(node->cpuset, cpu))
            return (uint16_t)node->os_index;
    }
    return 0;
}

/* Lists the allowed threads in hwloc's order, in which neighbours are adjacent. */
static void list(const library *l, lki_cores *out, const cpu_set_t *allowed)
{
    int      depth = l->hwloc_get_type_depth(l->topology, HWLOC_OBJ_PU);
    unsigned all   = l->hwloc_get_nbobjs_by_depth(l->topology, depth);
    unsigned api   = l->hwloc_get_api_version();

    for (unsigned i = 0; i < all; i++) {
        unsigned cpu = l->hwloc_get_obj_by_depth(l->topology, depth, i)->os_index;
        if (cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, allowed))
            continue;
        out->node[out->count]    = node_of(l, cpu);
        out->order[out->count++] = (uint16_t)cpu;
    }
    out->packages = count(l, HWLOC_OBJ_PACKAGE, allowed);
    out->nodes    = count(l, HWLOC_OBJ_NUMANODE, allowed);
    out->cores    = count(l, HWLOC_OBJ_CORE, allowed);
    (void)snprintf(out->by, sizeof out->by, "hwloc, API %u.%u", api >> 16, api >> 8 & 0xff);
}

bool lki_topology_read(lki_cores *cores, const cpu_set_t *allowed)
{
    library l    = { .handle = NULL };
    bool    good = load(&l);

    if (good)
        list(&l, cores, allowed);
    unload(&l);
    return good;
}

#else

bool lki_topology_read(lki_cores *cores, const cpu_set_t *allowed)
{
    (void)cores;
    (void)allowed;
    return false;
}

#endif
