#include "core/program/placements.h"
#include "core/base/invariant.h"
#include <string.h>

struct weft_placements {
  GHashTable *known; /* known placements; key: struct weft_group; value: struct weft_coll_shape */
  /* a copy of the cluster, because the placements refer to a cluster and outlive the plans of a
   * search */
  struct weft_cluster cluster;
};

static guint
hash (gconstpointer key)
{
  const struct weft_group *group = key;
  guint sum = group->first;

  for (int i = 0; i < 2; i++)
    sum = (sum * 31 + group->n[i]) * 31 + group->stride[i];
  return sum;
}

static gboolean
equal (gconstpointer a, gconstpointer b)
{
  return memcmp (a, b, sizeof (struct weft_group)) == 0;
}

static void
forget (gpointer shape)
{
  weft_coll_shape_release (shape);
  g_free (shape);
}

weft_placements *
weft_placements_new (void)
{
  weft_placements *placements = g_new0 (weft_placements, 1);

  placements->known = g_hash_table_new_full (hash, equal, g_free, forget);
  return placements;
}

void
weft_placements_free (weft_placements *placements)
{
  g_hash_table_unref (placements->known);
  g_free (placements);
}

/* Checks that all placements are on one cluster. The first call copies its cluster. */
static void
note_cluster (weft_placements *placements, const struct weft_cluster *cluster)
{
  struct weft_cluster *own = &placements->cluster;

  if (own->n_gpus == 0)
    *own = *cluster;
  WEFT_INVARIANT (own->n_gpus == cluster->n_gpus && own->n_nodes == cluster->n_nodes &&
                  memcmp (&own->f, &cluster->f, sizeof own->f) == 0);
}

const struct weft_coll_shape *
weft_placements_get (weft_placements *placements, const struct weft_fabric *fabric,
                     const struct weft_group *group)
{
  struct weft_coll_shape *shape = g_hash_table_lookup (placements->known, group);

  note_cluster (placements, fabric->cluster);
  if (shape)
    return shape;
  shape = g_new (struct weft_coll_shape, 1);
  weft_coll_shape_init (shape, fabric, group);
  if (shape->cluster == fabric->cluster)
    shape->cluster = &placements->cluster;
  g_hash_table_insert (placements->known, g_memdup2 (group, sizeof *group), shape);
  return shape;
}
