/* placements.h - placements of groups on the fabric of one cluster (struct weft_coll_shape), each
 * computed once.
 *
 * Computing a placement follows the route of every member. For a group of thousands of ranks this
 * takes longer than building the ops of a layer. All plans of a search together have few different
 * groups. */
#pragma once
#include "core/program/coll.h"
#include <glib.h>

typedef struct weft_placements weft_placements;

weft_placements *weft_placements_new (void);
void weft_placements_free (weft_placements *placements);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_placements, weft_placements_free)

/* Returns the placement of a group. All fabrics that callers pass with one weft_placements must
 * describe equal clusters. The placement belongs to `placements` and is valid until
 * weft_placements_free(). */
const struct weft_coll_shape *weft_placements_get (weft_placements *placements,
                                                   const struct weft_fabric *fabric,
                                                   const struct weft_group *group);

