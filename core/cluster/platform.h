/* platform.h - the network of a SimGrid platform file (XML, https://simgrid.org): hosts, links and
 * routes between them.
 *
 * A host is a node of a cluster. Its GPUs, and everything inside it, are those of the topology that
 * property `topology` of the file names:
 *
 *   <prop id="topology" value="dgx-h100"/>
 *
 * in the zone (or the cluster) of the file. Read are: one zone with routing Full and its host, link
 * and route elements; or one cluster element, which stands for a host for each number of its
 * radical, a pair of links for each host (SPLITDUPLEX), and a backbone if bb_bw is given. Whatever
 * else a file may say (other routing, several zones, FATPIPE links, traces, the network model) is
 * refused with its line. The speed of hosts and properties of other names have no effect. */
#pragma once
#include <glib.h>
#include <stdint.h>

struct weft_platform_link {
  char *name;
  double bandwidth, latency; /* bytes/s, seconds */
};

struct weft_platform_route {
  uint32_t n, *link;
  double latency; /* sum of its links, seconds */
};

struct weft_platform {
  char *topology; /* value of property `topology` */
  GPtrArray *host; /* names */
  GArray *link;    /* struct weft_platform_link */
  struct weft_platform_route *route; /* [from * number of hosts + to] */
};

/* The platform in a file. It is read once and belongs to the process. NULL with an error that names
 * file and line. May be called by several threads. */
const struct weft_platform *weft_platform_get (const char *path, GError **error);

/* Whether a path has the name of a platform file. */
gboolean weft_platform_is_file (const char *path);
