/* chakra.h - programs as Chakra execution traces, which ASTRA-sim simulates.
 *
 * A folder gets
 *
 *   weft.RANK.et        one file per rank: messages of chakra.proto, each after its length as a
 *                       varint; first GlobalMetadata, then one Node per op
 *   comm_groups.json    the members of every group: { "1": [0, 1], ... }
 *
 * for ASTRA-sim: --workload-configuration=FOLDER/weft, --comm-group-configuration=
 * FOLDER/comm_groups.json.
 *
 * Nodes. An op is a node with the number 2 op, named as in traces (weft_op_label()):
 *
 *   kernels              COMP_NODE with num_ops (FLOPs, at least 1) and tensor_size (bytes of
 *                        memory traffic). is_cpu_op is TRUE on lane host
 *   collectives          COMM_COLL_NODE with comm_type, pg_name (number of the group) and
 *                        comm_size: bytes of the tensor; for an all-gather, bytes of one rank's
 *                        piece, as ASTRA-sim's algorithms expect
 *   sends, receives      COMM_SEND_NODE, COMM_RECV_NODE with comm_src, comm_dst, comm_tag and
 *                        comm_size
 *   shifts of a ring     a send with number 2 op and a receive with number 2 op + 1
 *   copies to and from the host pool
 *                        MEM_STORE_NODE, MEM_LOAD_NODE with tensor_size; copies of tokens and of
 *                        scalars are COMP_NODEs
 *
 * duration_micros is the duration that Weft's cost model predicts for the op without contention,
 * rounded up to microseconds; attribute weft.duration_ns has it in nanoseconds. ASTRA-sim uses
 * duration_micros for broadcasts, and, if its roofline model is off, for COMP_NODEs.
 *
 * Dependencies. data_deps are the op's dependencies and the op before it on its lane; ctrl_deps are
 * the latter alone. ASTRA-sim's feeder follows data_deps, so lane order must be among them. Members
 * of one launch (grouped ops) do not depend on one another; the next op of the lane depends on
 * all. */
#pragma once
#include "core/plan/plan.h"

/* Writes the files of all ranks, or of rank `only` (-1: all), into a folder, which is created.
 * *bytes: sum of the lengths of the traces. */
gboolean weft_chakra_write (const weft_plan *plan, const char *folder, int64_t only,
                            uint64_t *bytes, GError **error);
