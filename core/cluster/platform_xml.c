/* Reads SimGrid platform files. */
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/cluster/platform.h"
#include <math.h>
#include <string.h>

enum { MOST_HOSTS = 4096, MOST_LINKS_OF_ROUTE = 100 };

struct reader {
  const char *path;
  GMarkupParseContext *context;
  struct weft_platform *p;
  GHashTable *host, *link; /* name -> number + 1 */
  /* numbers + 1 of links that a cluster or sharing policy has made in pairs: name -> first */
  GHashTable *pair;
  gboolean zone, cluster; /* the file has a zone, a cluster */
  /* of the route that is being read */
  uint32_t from, to;
  gboolean symmetrical, reading_route;
  GArray *there, *back; /* uint32_t: links in both directions */
  GArray *routes;       /* struct noted */
  GHashTable *routed;   /* from << 32 | to, of these routes */
};

/* A route, kept until all hosts are known. */
struct noted {
  uint32_t from, to, n, *link;
};

static int
line_of (const struct reader *r)
{
  int line;

  g_markup_parse_context_get_position (r->context, &line, NULL);
  return line;
}

static gboolean refuse (const struct reader *r, GError **error, const char *format, ...)
    G_GNUC_PRINTF (3, 4);

static gboolean
refuse (const struct reader *r, GError **error, const char *format, ...)
{
  va_list args;

  va_start (args, format);
  g_autofree char *text = g_strdup_vprintf (format, args);
  va_end (args);
  return weft_bad_input (error, "%s:%d: %s", r->path, line_of (r), text);
}

/* ------------------------------------------------------------------ values */

/* The attributes of an element. */
struct attributes {
  const char *element;
  const char **name, **value;
};

static const char *
attribute (const struct attributes *a, const char *name)
{
  for (unsigned i = 0; a->name[i]; i++)
    if (g_str_equal (a->name[i], name))
      return a->value[i];
  return NULL;
}

/* Refuses attributes that are not in the list `known` (words with blanks), and requires those of
 * the list `needed`. */
static gboolean
check_attributes (const struct reader *r, const struct attributes *a, const char *needed,
                  const char *known, GError **error)
{
  g_autofree char *list = g_strconcat (needed, *known ? " " : "", known, NULL);
  g_auto (GStrv) all = g_strsplit (list, " ", -1), must = g_strsplit (needed, " ", -1);

  for (unsigned i = 0; a->name[i]; i++)
    if (!g_strv_contains ((const char *const *) all, a->name[i]))
      return refuse (r, error, "<%s>: found attribute %s=\"%s\", wanted only %s", a->element,
                     a->name[i], a->value[i], list);
  for (unsigned i = 0; must[i] && *needed; i++)
    if (!attribute (a, must[i]))
      return refuse (r, error, "<%s>: found no attribute %s", a->element, must[i]);
  return TRUE;
}

/* Units of SimGrid: the longest name that fits comes first. */
static const struct {
  const char *word;
  double factor;
} prefixes[] = { { "Ki", 1024. }, { "Mi", 1048576. }, { "Gi", 1073741824. }, { "Ti", 0x1p40 },
                 { "k", 1e3 },    { "M", 1e6 },       { "G", 1e9 },          { "T", 1e12 },
                 { "", 1 } },
  times[] = { { "ns", 1e-9 }, { "us", 1e-6 }, { "ms", 1e-3 }, { "ps", 1e-12 }, { "s", 1 },
              { "", 1 } };

static gboolean
read_bandwidth (const struct reader *r, const char *text, double *value, GError **error)
{
  char *end;
  double number = g_ascii_strtod (text, &end);

  for (unsigned i = 0; end != text && isfinite (number) && number > 0 &&
                       i < G_N_ELEMENTS (prefixes);
       i++) {
    const char *unit = end + strlen (prefixes[i].word);
    if (!g_str_has_prefix (end, prefixes[i].word))
      continue;
    *value = number * prefixes[i].factor / (g_str_equal (unit, "bps") ? 8 : 1);
    if (g_str_equal (unit, "Bps") || g_str_equal (unit, "bps") || !*end)
      return TRUE;
  }
  return refuse (r, error, "found bandwidth \"%s\", wanted a positive number with a unit, such as "
                           "12.5GBps or 100Gbps",
                 text);
}

static gboolean
read_latency (const struct reader *r, const char *text, double *value, GError **error)
{
  char *end;
  double number = g_ascii_strtod (text, &end);

  for (unsigned i = 0; end != text && number >= 0 && number < 1e6 && i < G_N_ELEMENTS (times); i++)
    if (g_str_equal (end, times[i].word)) {
      *value = number * times[i].factor;
      return TRUE;
    }
  return refuse (r, error, "found latency \"%s\", wanted a number with a unit, such as 2us", text);
}

/* ---------------------------------------------------------- hosts and links */

static gboolean
add_host (struct reader *r, const char *name, GError **error)
{
  if (g_hash_table_contains (r->host, name))
    return refuse (r, error, "found host \"%s\" a second time", name);
  if (r->p->host->len == MOST_HOSTS)
    return refuse (r, error, "found more than %d hosts", MOST_HOSTS);
  g_ptr_array_add (r->p->host, g_strdup (name));
  g_hash_table_insert (r->host, g_strdup (name), GUINT_TO_POINTER (r->p->host->len));
  return TRUE;
}

static gboolean
add_link (struct reader *r, const char *name, double bandwidth, double latency, GError **error)
{
  struct weft_platform_link link = { g_strdup (name), bandwidth, latency };

  g_array_append_val (r->p->link, link);
  if (g_hash_table_insert (r->link, g_strdup (name), GUINT_TO_POINTER (r->p->link->len)))
    return TRUE;
  return refuse (r, error, "found link \"%s\" a second time", name);
}

/* A SPLITDUPLEX link is two links, as in SimGrid: NAME_UP and NAME_DOWN. */
static gboolean
add_pair (struct reader *r, const char *name, double bandwidth, double latency, GError **error)
{
  g_autofree char *up = g_strconcat (name, "_UP", NULL), *down = g_strconcat (name, "_DOWN", NULL);

  g_hash_table_insert (r->pair, g_strdup (name), GUINT_TO_POINTER (r->p->link->len + 1));
  return add_link (r, up, bandwidth, latency, error) &&
         add_link (r, down, bandwidth, latency, error);
}

static gboolean
read_host (struct reader *r, const struct attributes *a, GError **error)
{
  return check_attributes (r, a, "id speed", "core", error) &&
         add_host (r, attribute (a, "id"), error);
}

static gboolean
read_link (struct reader *r, const struct attributes *a, GError **error)
{
  const char *policy = attribute (a, "sharing_policy");
  double bandwidth, latency = 0;

  if (!check_attributes (r, a, "id bandwidth", "latency sharing_policy", error) ||
      !read_bandwidth (r, attribute (a, "bandwidth"), &bandwidth, error) ||
      (attribute (a, "latency") && !read_latency (r, attribute (a, "latency"), &latency, error)))
    return FALSE;
  if (policy && g_str_equal (policy, "SPLITDUPLEX"))
    return add_pair (r, attribute (a, "id"), bandwidth, latency, error);
  if (policy && !g_str_equal (policy, "SHARED"))
    return refuse (r, error, "found sharing_policy=\"%s\", wanted SHARED or SPLITDUPLEX: all flows "
                             "share a link",
                   policy);
  return add_link (r, attribute (a, "id"), bandwidth, latency, error);
}

/* ------------------------------------------------------------------ routes */

static gboolean
find_host (struct reader *r, const char *name, uint32_t *number, GError **error)
{
  *number = GPOINTER_TO_UINT (g_hash_table_lookup (r->host, name)) - 1;
  return *number != G_MAXUINT32 || refuse (r, error, "found no host \"%s\" above", name);
}

static gboolean
begin_route (struct reader *r, const struct attributes *a, GError **error)
{
  const char *symmetrical = attribute (a, "symmetrical");

  if (!check_attributes (r, a, "src dst", "symmetrical", error) ||
      !find_host (r, attribute (a, "src"), &r->from, error) ||
      !find_host (r, attribute (a, "dst"), &r->to, error))
    return FALSE;
  r->symmetrical = !symmetrical || g_ascii_strcasecmp (symmetrical, "no") != 0;
  r->reading_route = TRUE;
  g_array_set_size (r->there, 0);
  g_array_set_size (r->back, 0);
  return TRUE;
}

static gboolean
read_link_ctn (struct reader *r, const struct attributes *a, GError **error)
{
  const char *name = attribute (a, "id"), *direction = attribute (a, "direction");

  if (!check_attributes (r, a, "id", "direction", error))
    return FALSE;
  uint32_t pair = GPOINTER_TO_UINT (g_hash_table_lookup (r->pair, name)),
           link = GPOINTER_TO_UINT (g_hash_table_lookup (r->link, name)), there, back;
  if (pair && direction && (g_str_equal (direction, "UP") || g_str_equal (direction, "DOWN"))) {
    gboolean down = g_str_equal (direction, "DOWN");
    there = pair - 1 + down;
    back = pair - 1 + !down;
  } else if (!pair && link && (!direction || g_str_equal (direction, "NONE"))) {
    there = back = link - 1;
  } else {
    return refuse (r, error, pair   ? "link \"%s\" is SPLITDUPLEX: wanted direction=\"UP\" or DOWN"
                             : link ? "link \"%s\" has no direction: wanted none"
                                    : "found no link \"%s\" above",
                   name);
  }
  g_array_append_val (r->there, there);
  g_array_prepend_val (r->back, back);
  return r->there->len <= MOST_LINKS_OF_ROUTE ||
         refuse (r, error, "found a route of more than %d links", MOST_LINKS_OF_ROUTE);
}

static void
note_route (GArray *routes, uint32_t from, uint32_t to, const GArray *links)
{
  struct noted route = { from, to, links->len,
                         g_memdup2 (links->data, links->len * sizeof (uint32_t)) };

  g_array_append_val (routes, route);
}

/* Notes a route and, if it is symmetrical, the way back. As in SimGrid, a pair of hosts has one
 * route. */
static gboolean
end_route (struct reader *r, GError **error)
{
  gboolean back = r->symmetrical && r->from != r->to;
  int64_t keys[] = { (int64_t) r->from << 32 | r->to, (int64_t) r->to << 32 | r->from };

  r->reading_route = FALSE;
  for (int i = 0; i <= back; i++)
    if (!g_hash_table_add (r->routed, g_memdup2 (&keys[i], sizeof keys[i])))
      return refuse (r, error, "found a second route from host %s to host %s",
                     (char *) r->p->host->pdata[keys[i] >> 32],
                     (char *) r->p->host->pdata[(uint32_t) keys[i]]);
  note_route (r->routes, r->from, r->to, r->there);
  if (back)
    note_route (r->routes, r->to, r->from, r->back);
  return TRUE;
}

/* ---------------------------------------------------------------- clusters */

/* The host of number i of a cluster, and its links. */
static gboolean
add_member (struct reader *r, const struct attributes *a, int64_t i, double bandwidth,
            double latency, GError **error)
{
  const char *prefix = attribute (a, "prefix"), *suffix = attribute (a, "suffix");
  g_autofree char *host = g_strdup_printf ("%s%" G_GINT64_FORMAT "%s", prefix, i, suffix);
  g_autofree char *link = g_strdup_printf ("%s_link_%" G_GINT64_FORMAT, attribute (a, "id"), i);

  return add_host (r, host, error) && add_pair (r, link, bandwidth, latency, error);
}

/* Adds the hosts of a radical: numbers and ranges, separated by commas, as in 0-15,20. */
static gboolean
add_members (struct reader *r, const struct attributes *a, double bandwidth, double latency,
             GError **error)
{
  const char *radical = attribute (a, "radical");
  g_auto (GStrv) range = g_strsplit (radical, ",", -1);

  for (unsigned k = 0; range[k]; k++) {
    char *end;
    int64_t first = g_ascii_strtoll (range[k], &end, 10), last = first;
    gboolean good = end != range[k] && first >= 0;
    if (good && *end == '-') {
      const char *start = end + 1;
      last = g_ascii_strtoll (start, &end, 10);
      good = end != start && last >= first;
    }
    if (!good || *end || last - first >= MOST_HOSTS)
      return refuse (r, error, "found radical=\"%s\", wanted at most %d numbers, as in 0-15,20",
                     radical, MOST_HOSTS);
    for (int64_t i = first; i <= last; i++)
      if (!add_member (r, a, i, bandwidth, latency, error))
        return FALSE;
  }
  return TRUE;
}

/* A route of a cluster: the sender's link up, the backbone, the receiver's link down. */
static void
route_members (struct reader *r, uint32_t backbone)
{
  for (uint32_t from = 0; from < r->p->host->len; from++)
    for (uint32_t to = 0; to < r->p->host->len; to++) {
      if (from == to)
        continue;
      uint32_t up = 2 * from, down = 2 * to + 1;
      g_array_set_size (r->there, 0);
      g_array_append_val (r->there, up);
      if (backbone != G_MAXUINT32)
        g_array_append_val (r->there, backbone);
      g_array_append_val (r->there, down);
      note_route (r->routes, from, to, r->there);
    }
}

static gboolean
read_cluster (struct reader *r, const struct attributes *a, GError **error)
{
  const char *bb = attribute (a, "bb_bw"), *bb_lat = attribute (a, "bb_lat"),
             *policy = attribute (a, "sharing_policy");
  double bandwidth, latency = 0, bb_bandwidth = 0, bb_latency = 0;
  uint32_t backbone = G_MAXUINT32;

  if (!check_attributes (r, a, "id prefix suffix radical speed bw lat",
                         "core bb_bw bb_lat sharing_policy bb_sharing_policy", error) ||
      !read_bandwidth (r, attribute (a, "bw"), &bandwidth, error) ||
      !read_latency (r, attribute (a, "lat"), &latency, error) ||
      (bb && !read_bandwidth (r, bb, &bb_bandwidth, error)) ||
      (bb_lat && !read_latency (r, bb_lat, &bb_latency, error)))
    return FALSE;
  if (policy && !g_str_equal (policy, "SPLITDUPLEX"))
    return refuse (r, error, "found sharing_policy=\"%s\" of a cluster, wanted SPLITDUPLEX",
                   policy);
  policy = attribute (a, "bb_sharing_policy");
  if (policy && !g_str_equal (policy, "SHARED"))
    return refuse (r, error,
                   "found bb_sharing_policy=\"%s\", wanted SHARED, or no backbone if it is never "
                   "full",
                   policy);
  if (r->cluster || r->p->host->len > 0)
    return refuse (r, error, "found a cluster beside other hosts, wanted one cluster");
  r->cluster = TRUE;
  if (!add_members (r, a, bandwidth, latency, error))
    return FALSE;
  if (bb) {
    g_autofree char *name = g_strconcat (attribute (a, "id"), "_backbone", NULL);
    backbone = r->p->link->len;
    if (!add_link (r, name, bb_bandwidth, bb_latency, error))
      return FALSE;
  }
  route_members (r, backbone);
  return TRUE;
}

/* ---------------------------------------------------------------- elements */

static gboolean
read_platform (struct reader *r, const struct attributes *a, GError **error)
{
  if (!check_attributes (r, a, "version", "", error))
    return FALSE;
  return g_str_has_prefix (attribute (a, "version"), "4") ||
         refuse (r, error, "found version=\"%s\", wanted 4 or 4.1", attribute (a, "version"));
}

static gboolean
read_zone (struct reader *r, const struct attributes *a, GError **error)
{
  if (!check_attributes (r, a, "id routing", "", error))
    return FALSE;
  if (r->zone)
    return refuse (r, error, "found a second zone, wanted one");
  r->zone = TRUE;
  return g_ascii_strcasecmp (attribute (a, "routing"), "Full") == 0 ||
         refuse (r, error, "found routing=\"%s\", wanted Full: a route for each pair of hosts",
                 attribute (a, "routing"));
}

static gboolean
read_prop (struct reader *r, const struct attributes *a, GError **error)
{
  if (!check_attributes (r, a, "id value", "", error))
    return FALSE;
  if (g_str_equal (attribute (a, "id"), "topology")) {
    g_free (r->p->topology);
    r->p->topology = g_strdup (attribute (a, "value"));
  }
  return TRUE;
}

static void
start_element (GMarkupParseContext *context, const char *name, const char **names,
               const char **values, void *user, GError **error)
{
  static const struct {
    const char *name;
    gboolean (*read) (struct reader *, const struct attributes *, GError **);
  } elements[] = {
    { "platform", read_platform }, { "zone", read_zone },         { "AS", read_zone },
    { "host", read_host },         { "link", read_link },         { "route", begin_route },
    { "link_ctn", read_link_ctn }, { "cluster", read_cluster },   { "prop", read_prop },
  };
  struct reader *r = user;
  struct attributes a = { name, names, values };

  r->context = context;
  if (r->reading_route != g_str_equal (name, "link_ctn")) {
    refuse (r, error, "found <%s>%s", name,
            r->reading_route ? " in a route, wanted <link_ctn>" : " outside of a route");
    return;
  }
  for (unsigned i = 0; i < G_N_ELEMENTS (elements); i++)
    if (g_str_equal (elements[i].name, name)) {
      elements[i].read (r, &a, error);
      return;
    }
  refuse (r, error, "found <%s>, wanted zone, cluster, host, link, route or prop: what else a "
                    "platform may say has no meaning here",
          name);
}

static void
end_element (GMarkupParseContext *context, const char *name, void *user, GError **error)
{
  (void) context;
  if (g_str_equal (name, "route"))
    end_route (user, error);
}

/* ------------------------------------------------------------------- files */

static gboolean
fill_routes (struct reader *r, GError **error)
{
  struct weft_platform *p = r->p;
  uint32_t n = p->host->len;

  if (n == 0)
    return weft_bad_input (error, "%s: found no hosts", r->path);
  p->route = g_new0 (struct weft_platform_route, (size_t) n * n);
  for (guint i = 0; i < r->routes->len; i++) {
    struct noted *noted = &g_array_index (r->routes, struct noted, i);
    struct weft_platform_route *route = &p->route[(size_t) noted->from * n + noted->to];
    g_free (route->link);
    *route = (struct weft_platform_route){ noted->n, g_steal_pointer (&noted->link), 0 };
    for (uint32_t k = 0; k < route->n; k++)
      route->latency +=
          g_array_index (p->link, struct weft_platform_link, route->link[k]).latency;
  }
  for (uint32_t i = 0; i < n * n; i++)
    if (i / n != i % n && !p->route[i].link)
      return weft_bad_input (error, "%s: found no route from host %s to host %s", r->path,
                             (char *) p->host->pdata[i / n], (char *) p->host->pdata[i % n]);
  return TRUE;
}

static gboolean
parse (struct reader *r, const char *text, gsize length, GError **error)
{
  static const GMarkupParser parser = { .start_element = start_element,
                                        .end_element = end_element };
  GMarkupParseContext *context =
      g_markup_parse_context_new (&parser, G_MARKUP_TREAT_CDATA_AS_TEXT, r, NULL);
  GError *failed = NULL;
  gboolean good = g_markup_parse_context_parse (context, text, (gssize) length, &failed) &&
                  g_markup_parse_context_end_parse (context, &failed);

  g_markup_parse_context_free (context);
  if (!good && failed->domain == G_MARKUP_ERROR) {
    weft_bad_input (error, "%s: %s", r->path, failed->message);
    g_error_free (failed);
  } else if (!good) {
    g_propagate_error (error, failed);
  }
  return good && fill_routes (r, error);
}

static void
platform_free (struct weft_platform *p)
{
  uint32_t n = p->host->len;

  for (guint i = 0; i < p->link->len; i++)
    g_free (g_array_index (p->link, struct weft_platform_link, i).name);
  for (uint32_t i = 0; p->route && i < n * n; i++)
    g_free (p->route[i].link);
  g_free (p->route);
  g_free (p->topology);
  g_ptr_array_unref (p->host);
  g_array_unref (p->link);
  g_free (p);
}

static struct weft_platform *
load (const char *path, GError **error)
{
  gsize length;
  g_autofree char *text = weft_file_read (path, 1 << 26, &length, error);
  struct reader r = { .path = path };

  if (!text || !weft_file_check_text (text, length, path, error))
    return NULL;
  r.p = g_new0 (struct weft_platform, 1);
  r.p->host = g_ptr_array_new_with_free_func (g_free);
  r.p->link = g_array_new (FALSE, FALSE, sizeof (struct weft_platform_link));
  r.host = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  r.link = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  r.pair = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  r.there = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  r.back = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  r.routed = g_hash_table_new_full (g_int64_hash, g_int64_equal, g_free, NULL);
  r.routes = g_array_new (FALSE, FALSE, sizeof (struct noted));
  if (!parse (&r, text, length, error))
    g_clear_pointer (&r.p, platform_free);
  for (guint i = 0; i < r.routes->len; i++)
    g_free (g_array_index (r.routes, struct noted, i).link);
  g_hash_table_unref (r.host);
  g_hash_table_unref (r.link);
  g_hash_table_unref (r.pair);
  g_hash_table_unref (r.routed);
  g_array_unref (r.there);
  g_array_unref (r.back);
  g_array_unref (r.routes);
  return r.p;
}

gboolean
weft_platform_is_file (const char *path)
{
  return g_str_has_suffix (path, ".xml");
}

const struct weft_platform *
weft_platform_get (const char *path, GError **error)
{
  static GMutex lock;
  static GHashTable *known; /* path -> struct weft_platform */

  g_mutex_lock (&lock);
  if (!known)
    known = g_hash_table_new (g_str_hash, g_str_equal);
  struct weft_platform *p = g_hash_table_lookup (known, path);
  if (!p && (p = load (path, error)))
    g_hash_table_insert (known, g_strdup (path), p);
  g_mutex_unlock (&lock);
  return p;
}
