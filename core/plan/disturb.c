#include "core/plan/disturb.h"
#include "core/base/error.h"
#include "core/base/mix.h"
#include "core/base/suggest.h"
#include <math.h>
#include <string.h>

/* Factors of kernel times, and shares of link rates. A share above 1 has no effect on collectives,
 * whose flows are limited to the rate of the undisturbed links. */
#define LEAST_FACTOR 1e-3
#define MOST_SLOW 1e3
#define MOST_SHARE 1.0

void
weft_disturb_clear (weft_disturb *d)
{
  g_clear_pointer (&d->slow, g_free);
  g_clear_pointer (&d->share, g_free);
}

gboolean
weft_disturb_any (const weft_disturb *d)
{
  return d->slow || d->share || d->jitter > 0;
}

/* A set of ranks or links: numbers from first to last. */
struct span {
  uint32_t first, last;
};

static double *
ones (uint32_t n)
{
  double *factor = g_new (double, n + 1);

  for (uint32_t i = 0; i < n; i++)
    factor[i] = 1;
  return factor;
}

/* Splits "WHO:FACTOR". The caller frees *who. */
static gboolean
split_item (const char *item, const char *form, double most, char **who, double *factor,
            GError **error)
{
  const char *colon = strrchr (item, ':');
  char *end = NULL;

  *factor = colon ? g_ascii_strtod (colon + 1, &end) : 0;
  if (!colon || colon == item || end == colon + 1 || *end)
    return weft_bad_input (error, "found \"%s\", wanted a name, a colon and a factor: %s", item,
                           form);
  if (!(*factor >= LEAST_FACTOR && *factor <= most))
    return weft_bad_input (error, "%s: found the factor %s, wanted a number from %g to %g", item,
                           colon + 1, LEAST_FACTOR, most);
  *who = g_strndup (item, (gsize) (colon - item));
  return TRUE;
}

/* Reads "5" or "0-7", numbers below n. */
static gboolean
read_span (const char *text, const char *noun, uint32_t n, struct span *span, GError **error)
{
  g_auto (GStrv) part = g_strsplit (text, "-", 2);
  guint64 first, last;

  if (!part[0] || !g_ascii_string_to_unsigned (part[0], 10, 0, G_MAXUINT32, &first, NULL) ||
      !g_ascii_string_to_unsigned (part[1] ? part[1] : part[0], 10, 0, G_MAXUINT32, &last, NULL))
    return weft_bad_input (error, "found %s \"%s\", wanted a number or two numbers: 5 or 0-7", noun,
                           text);
  if (first > last || last >= n)
    return weft_bad_input (error, "found %s %s, wanted numbers from 0 to %u in rising order", noun,
                           text, n - 1);
  *span = (struct span){ (uint32_t) first, (uint32_t) last };
  return TRUE;
}

/* -------------------------------------------------------------- stragglers */

static uint32_t
own_number (const struct weft_fabric *f, uint32_t gpu)
{
  (void) f;
  return gpu;
}

static uint32_t
count_ranks (const struct weft_fabric *f)
{
  return f->cluster->n_gpus;
}

static uint32_t
count_nodes (const struct weft_fabric *f)
{
  return f->cluster->n_nodes;
}

/* X (word, number of such places, number of the place of a GPU): the words that name ranks. */
#define PLACE_LIST(X)                                                                              \
  X ("rank", count_ranks, own_number)                                                              \
  X ("node", count_nodes, weft_fabric_node)

static const struct place {
  const char *word;
  uint32_t (*count) (const struct weft_fabric *f);
  uint32_t (*of) (const struct weft_fabric *f, uint32_t gpu);
} places[] = {
#define PLACE(...) { __VA_ARGS__ },
  PLACE_LIST (PLACE)
};
#define PLACE_WORD(word, ...) word,
static const char *const place_words[] = { PLACE_LIST (PLACE_WORD) NULL };

static const struct place *
find_place (const char *word, GError **error)
{
  for (unsigned i = 0; i < G_N_ELEMENTS (places); i++)
    if (weft_same_name (places[i].word, word))
      return &places[i];
  const char *near = weft_suggest_strv (word, place_words);
  g_autofree char *all = g_strjoinv (" or ", (char **) place_words);
  weft_bad_input (error, "found \"%s\", wanted %s%s%s%s", word, all, near ? "; did you mean " : "",
                  near ? near : "", near ? "?" : "");
  return NULL;
}

static gboolean
add_straggler (weft_disturb *d, const struct weft_fabric *f, const char *item, GError **error)
{
  g_autofree char *who = NULL;
  double factor;
  struct span span;

  if (!split_item (item, WEFT_STRAGGLER_FORM, MOST_SLOW, &who, &factor, error))
    return FALSE;
  char *number = strchr (who, '=');
  if (!number)
    return weft_bad_input (error, "found \"%s\", wanted %s", item, WEFT_STRAGGLER_FORM);
  *number++ = '\0';
  const struct place *place = find_place (who, error);
  if (!place || !read_span (number, place->word, place->count (f), &span, error))
    return FALSE;
  for (uint32_t rank = 0; rank < f->cluster->n_gpus; rank++)
    if (place->of (f, rank) >= span.first && place->of (f, rank) <= span.last)
      d->slow[rank] *= factor;
  return TRUE;
}

/* ------------------------------------------------------------------- links */

/* The links of a fabric that an item names. */
struct links {
  char *name;                /* name of the kind without a direction: "nic" */
  const char *way;           /* " up" or " down"; NULL: both directions */
  char *number;              /* "3" or "0-7"; "": all links of the kind */
  const struct place *place; /* place whose links are meant; NULL: none */
  struct span at;            /* with `place`: its numbers */
};

static void
links_clear (struct links *l)
{
  g_free (l->name);
  g_free (l->number);
}
typedef struct links links_t;
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (links_t, links_clear)

/* Name of a kind of links without its direction: "nic", "host-memory". The caller frees it. */
static char *
base_name (const struct weft_link_kind *kind)
{
  char *name = g_strdup (kind->word), *end = name + strlen (name);

  if (g_str_has_suffix (name, " up"))
    end[-3] = '\0';
  else if (g_str_has_suffix (name, " down"))
    end[-5] = '\0';
  return g_strdelimit (name, " ", '-');
}

static gboolean
is_kind (const struct weft_link_kind *kind, const struct links *l)
{
  g_autofree char *base = base_name (kind);

  return (weft_same_name (base, l->name) || (kind->also && weft_same_name (kind->also, l->name))) &&
         (!l->way || g_str_has_suffix (kind->word, l->way));
}

/* The names of all kinds of links that this cluster has, or with `all` that its fabric knows. The
 * caller frees the array and its texts. */
static char **
kind_names (const struct weft_fabric *f, gboolean all)
{
  GPtrArray *names = g_ptr_array_new ();

  for (uint32_t k = 0; k < f->ops->n_kind; k++) {
    const char *also = f->ops->kind[k].also;
    char *base = base_name (&f->ops->kind[k]);
    if ((!all && f->first[k] == f->first[k + 1]) ||
        g_ptr_array_find_with_equal_func (names, base, g_str_equal, NULL)) {
      g_free (base);
      continue;
    }
    g_ptr_array_add (names, base);
    if (also)
      g_ptr_array_add (names, g_strdup (also));
  }
  g_ptr_array_add (names, NULL);
  return (char **) g_ptr_array_free (names, FALSE);
}

static gboolean
unknown_kind (const struct weft_fabric *f, const struct links *l, const char *item, GError **error)
{
  g_auto (GStrv) names = kind_names (f, FALSE), known = kind_names (f, TRUE);
  g_autofree char *list = g_strjoinv (", ", names);
  const char *near = weft_suggest_strv (l->name, (const char *const *) names);

  for (char **name = known; *name; name++)
    if (weft_same_name (*name, l->name))
      return weft_bad_input (error,
                             "%s: found %s, which cannot be a bottleneck of this cluster and is "
                             "therefore not simulated, wanted one of %s",
                             item, l->name, list);
  return weft_bad_input (error, "%s: found the link \"%s\", wanted one of %s%s%s%s", item, l->name,
                         list, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

/* Reads the text after '@': "rank5" or "node2". */
static gboolean
read_place (struct links *l, const struct weft_fabric *f, const char *text, GError **error)
{
  gsize letters = strcspn (text, "=0123456789");
  g_autofree char *word = g_strndup (text, letters);

  l->place = find_place (word, error);
  return l->place && read_span (text + letters + (text[letters] == '='), l->place->word,
                                l->place->count (f), &l->at, error);
}

/* Splits "nic3-up" or "nic-up@rank5" into its parts. */
static gboolean
read_links (struct links *l, const struct weft_fabric *f, const char *who, GError **error)
{
  static const char *const ways[] = { " up", " down" };
  g_auto (GStrv) part = g_strsplit (who, "@", 2);
  char *name = part[0];

  for (unsigned i = 0; i < G_N_ELEMENTS (ways); i++) {
    gsize cut = strlen (name) - strlen (ways[i]);
    if (strlen (name) > strlen (ways[i]) && name[cut] == '-' &&
        strcmp (name + cut + 1, ways[i] + 1) == 0) {
      l->way = ways[i];
      name[cut] = '\0';
    }
  }
  gsize letters = strcspn (name, "=0123456789");
  l->name = g_strndup (name, letters);
  l->number = g_strdup (name + letters + (name[letters] == '='));
  return !part[1] || read_place (l, f, part[1], error);
}

/* Multiplies the shares of the links of one kind that an item names. */
static gboolean
slow_kind (weft_disturb *d, const struct weft_fabric *f, uint32_t kind, const struct links *l,
           double factor, GError **error)
{
  uint32_t n = f->first[kind + 1] - f->first[kind];
  struct span span = { 0, n - 1 };
  g_autofree gboolean *there = g_new0 (gboolean, n + 1);

  if (*l->number && !read_span (l->number, l->name, n, &span, error))
    return FALSE;
  for (uint32_t gpu = 0; l->place && gpu < f->cluster->n_gpus; gpu++) {
    uint32_t at = l->place->of (f, gpu);
    there[f->ops->kind[kind].owner (f, gpu)] |= at >= l->at.first && at <= l->at.last;
  }
  for (uint32_t i = span.first; i <= span.last; i++)
    if (!l->place || there[i])
      d->share[f->first[kind] + i] *= factor;
  return TRUE;
}

static gboolean
add_links (weft_disturb *d, const struct weft_fabric *f, const char *item, GError **error)
{
  g_auto (links_t) l = { 0 };
  g_autofree char *who = NULL;
  gboolean found = FALSE;
  double factor;

  if (!split_item (item, WEFT_SLOW_LINK_FORM, MOST_SHARE, &who, &factor, error) ||
      !read_links (&l, f, who, error))
    return FALSE;
  if (*l.number && l.place)
    return weft_bad_input (error, "%s: found a number and a place, wanted one of both: %s", item,
                           WEFT_SLOW_LINK_FORM);
  for (uint32_t k = 0; k < f->ops->n_kind; k++) {
    if (!is_kind (&f->ops->kind[k], &l) || f->first[k] == f->first[k + 1])
      continue;
    found = TRUE;
    if (!slow_kind (d, f, k, &l, factor, error))
      return FALSE;
  }
  return found || unknown_kind (f, &l, item, error);
}

/* -------------------------------------------------------------------- read */

typedef gboolean
add_item (weft_disturb *d, const struct weft_fabric *f, const char *item, GError **error);

static gboolean
add_items (weft_disturb *d, const struct weft_fabric *f, const char *text, add_item *add,
           GError **error)
{
  g_auto (GStrv) item = g_strsplit (text, ",", -1);

  for (char **at = item; *at; at++)
    if (!add (d, f, g_strstrip (*at), error))
      return FALSE;
  return TRUE;
}

gboolean
weft_disturb_stragglers (weft_disturb *d, const struct weft_fabric *f, const char *text,
                         GError **error)
{
  if (!text || !*text)
    return TRUE;
  if (!d->slow)
    d->slow = ones (f->cluster->n_gpus);
  return add_items (d, f, text, add_straggler, error);
}

gboolean
weft_disturb_links (weft_disturb *d, const struct weft_fabric *f, const char *text, GError **error)
{
  if (!text || !*text)
    return TRUE;
  if (!d->share)
    d->share = ones (weft_fabric_links (f));
  return add_items (d, f, text, add_links, error);
}

/* ------------------------------------------------------------------ jitter */

/* A number from the open interval (0, 1). */
static double
uniform (uint64_t bits)
{
  return ((double) (bits >> 11) + 0.5) * 0x1p-53;
}

/* A normally distributed number, by the transform of Box and Muller (1958). */
static double
normal (uint64_t bits)
{
  double radius = sqrt (-2 * log (uniform (weft_mix (bits))));

  return radius * cos (2 * G_PI * uniform (weft_mix (bits ^ WEFT_MIX_STEP)));
}

static double
noise (const weft_disturb *d, uint32_t rank, uint32_t op)
{
  double variance = log1p (d->jitter * d->jitter);
  uint64_t bits = weft_mix (weft_mix (d->seed) ^ ((uint64_t) rank << 32 | op));

  return exp (sqrt (variance) * normal (bits) - variance / 2);
}

double
weft_disturb_factor (const weft_disturb *d, uint32_t rank, uint32_t op)
{
  double factor = d->slow ? d->slow[rank] : 1;

  return d->jitter > 0 ? factor * noise (d, rank, op) : factor;
}
