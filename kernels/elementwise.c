#include "kernels/elementwise.h"
#include "kernels/float.h"
#include "kernels/part.h"

static float *
elements (const struct weft_operand *o, char access, uint64_t first, uint64_t n, float *room)
{
  if (!o->data || access == '-')
    return NULL;
  if (access == 'w')
    return weft_target (o->data, o->dtype, first, room);
  return (float *) weft_floats (o->data, o->dtype, first, n, room);
}

void
weft_elementwise_run (const struct weft_kernel *k, const struct weft_elementwise *flat,
                      uint32_t part, uint32_t parts)
{
  struct weft_range range = weft_part (flat->n, WEFT_STRETCH, part, parts);
  float room[WEFT_MOST_OPERANDS][WEFT_STRETCH], *at[WEFT_MOST_OPERANDS] = { NULL };

  for (uint64_t first = range.begin; first < range.end; first += WEFT_STRETCH) {
    uint64_t n = weft_least (range.end - first, WEFT_STRETCH);
    for (uint32_t o = 0; flat->access[o]; o++)
      at[o] = elements (&k->operand[o], flat->access[o], first, n, room[o]);
    flat->run (flat->with, at, n);
    for (uint32_t o = 0; flat->access[o]; o++)
      if (at[o] && flat->access[o] != 'r')
        weft_store (k->operand[o].data, k->operand[o].dtype, first, n, at[o]);
  }
}
