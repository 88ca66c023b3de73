/* op.h - the closed set of things a rank does, once.
 *
 * A row says what an op is called, where it runs, what its shape dimensions mean, which operands it
 * takes in which order, and what it costs in FLOPs and bytes of memory traffic.  Operands:
 * name:access, access r, w or rw, a trailing ? marks one that may be absent (WEFT_NO_BUF keeps its
 * place).
 *
 * FLOPs count a multiply and an add as two.  Attention is causal: half of the full square (the
 * convention of Megatron-LM since 2024); its backward counts twice the forward, as in the 6 N rule,
 * though kernels that rebuild the scores execute two and a half times as much.  Byte counts are the
 * compulsory traffic: every operand once. */
#pragma once
#include "core/program/mesh.h"
#include "core/base/words.h"

#define WEFT_LANE_LIST(X)                                                                          \
  X (WEFT_LANE_GPU, "gpu", "kernels")                                                              \
  X (WEFT_LANE_TP, "tp", "tensor parallel collectives")                                            \
  X (WEFT_LANE_CP, "cp", "context parallel exchange")                                              \
  X (WEFT_LANE_EP, "ep", "expert dispatch and combine")                                            \
  X (WEFT_LANE_DP, "dp", "gradient and parameter collectives")                                     \
  X (WEFT_LANE_DP_OUTER, "dp_outer", "the same between groups that hold what is sharded")          \
  X (WEFT_LANE_PP, "pp", "activations and gradients between stages")                               \
  X (WEFT_LANE_PP_BACK, "pp_back", "the other way, where transfers are posted one by one")         \
  X (WEFT_LANE_WORLD, "world", "scalars that all ranks agree on")                                  \
  X (WEFT_LANE_H2D, "h2d", "copies from the host")                                                 \
  X (WEFT_LANE_D2H, "d2h", "copies to the host")                                                   \
  X (WEFT_LANE_HOST, "host", "kernels of the CPU, on buffers of the host pool")
enum weft_lane { WEFT_LANE_LIST (WEFT_WORD_ID) WEFT_N_LANE };
extern const char *const weft_lane_words[];

/* What kind of machine an op needs. */
enum weft_op_class {
  WEFT_CLASS_COMPUTE,    /* a kernel */
  WEFT_CLASS_COLLECTIVE, /* all members of a group take part */
  WEFT_CLASS_P2P,        /* send or recv: one peer */
  WEFT_CLASS_COPY,       /* host link */
};

/*  constant               word             class        dimensions  operands */
#define WEFT_OP_LIST(X)                                                                            \
  X (WEFT_OP_EMBED, "embed", COMPUTE, embed, "tokens hidden",                                      \
     "ids:r table:r positions:r? y:w", "look up token (and position) vectors")                     \
  X (WEFT_OP_EMBED_BWD, "embed_bwd", COMPUTE, embed_bwd, "tokens hidden passes",                   \
     "ids:r dy:r dtable:rw dpositions:rw?",                                                        \
     "add gradients to the rows that were looked up; passes: over one sequence, chunk by chunk")   \
  X (WEFT_OP_MATMUL, "matmul", COMPUTE, matmul, "m n k leaves tail", "x:r w:r b:r? y:w",           \
     "y(m,n) = x(m,k) w(n,k)^T + b(n); leaves, tail: kernels/leaves.h, of terms k")                \
  X (WEFT_OP_MATMUL_DGRAD, "matmul_dgrad", COMPUTE, matmul, "m n k leaves tail", "dy:r w:r dx:w",  \
     "dx(m,k) = dy(m,n) w(n,k); leaves of terms n")                                                \
  X (WEFT_OP_MATMUL_WGRAD, "matmul_wgrad", COMPUTE, wgrad, "m n k passes",                       \
     "dy:r x:r dw:rw db:rw?",                                                                      \
     "dw(n,k) += dy(m,n)^T x(m,k); db(n) += column sums of dy")                                    \
  X (WEFT_OP_MATMUL_FP8, "matmul_fp8", COMPUTE, matmul_fp8, "m n k leaves tail",                   \
     "x:r w:r scale:r b:r? y:w",                                                                   \
     "matmul with weights of one byte, times their scale; all else in the type of x")              \
  X (WEFT_OP_MATMUL_DGRAD_FP8, "matmul_dgrad_fp8", COMPUTE, matmul_fp8, "m n k leaves tail",       \
     "dy:r wt:r scale:r dx:w", "dx(m,k) = dy(m,n) wt(k,n)^T: reads the transposed copy")           \
  X (WEFT_OP_FP8_MATMUL, "fp8_matmul", COMPUTE, fp8_matmul, "m n k leaves tail block",             \
     "x:r x_scale:r w:r w_scale:r b:r? y:w",                                                       \
     "y(m,n) = x(m,k) w(n,k)^T + b(n), both of one byte; block 0: a scale for a tensor, which is its "\
     "largest magnitude; 32: for so many elements of a row; 128: likewise, of w for squares")      \
  X (WEFT_OP_FP8_MATMUL_DGRAD, "fp8_matmul_dgrad", COMPUTE, fp8_matmul, "m n k leaves tail block", \
     "dy:r dy_scale:r wt:r wt_scale:r dx:w", "dx(m,k) = dy(m,n) wt(k,n)^T, likewise")              \
  X (WEFT_OP_FP8_MATMUL_WGRAD, "fp8_matmul_wgrad", COMPUTE, fp8_wgrad, "m n k passes block",       \
     "dyt:r dyt_scale:r xt:r xt_scale:r dw:rw db:rw?",                                             \
     "dw(n,k) += dyt(n,m) xt(k,m)^T, likewise, with scales for rows of both; db(n) += sums of dyt's rows") \
  X (WEFT_OP_NORM, "norm", COMPUTE, pass2, "rows columns", "x:r weight:r bias:r? y:w",             \
     "layernorm or rmsnorm of each row; statistics are rebuilt in backward")                       \
  X (WEFT_OP_NORM_BWD, "norm_bwd", COMPUTE, pass4, "rows columns",                                 \
     "dy:r x:r weight:r dresidual:r? dx:w dweight:rw dbias:rw?",                                   \
     "dx = dresidual + input gradient, in place where the residual branch meets")                  \
  X (WEFT_OP_HEAD_NORM, "head_norm", COMPUTE, pass2, "rows columns together",                      \
     "qkv:rw q_weight:r k_weight:r raw:w",                                                         \
     "norm of each query and key head, in place; raw keeps the input; together: so many heads of "  \
     "a token are one row of queries and one of keys")                                             \
  X (WEFT_OP_HEAD_NORM_BWD, "head_norm_bwd", COMPUTE, pass4, "rows columns together",              \
     "dqkv:rw raw:r q_weight:r k_weight:r dq_weight:rw dk_weight:rw", "its gradient, in place")    \
  X (WEFT_OP_ROPE, "rope", COMPUTE, pass2, "tokens columns local", "qkv:rw",                       \
     "turn queries and keys by their position, in place; local: by rotary_base_local")             \
  X (WEFT_OP_ROPE_BWD, "rope_bwd", COMPUTE, pass2, "tokens columns local", "dqkv:rw",              \
     "turn gradients back, in place")                                                              \
  X (WEFT_OP_ATTENTION, "attention", COMPUTE, attention,                                           \
     "batch sequence heads groups width window value", "qkv:r o:w lse:w",                          \
     "causal attention without the score matrix; lse is fp32; a query sees `window` keys, itself "  \
     "included, or with 0 all before it; heads of values are `value` wide, or as those of keys")   \
  X (WEFT_OP_ATTENTION_BWD, "attention_bwd", COMPUTE, attention_bwd,                               \
     "batch sequence heads groups width window value", "qkv:r o:r lse:r do:r dqkv:w",              \
     "its gradient")                                                                               \
  X (WEFT_OP_SCORES, "scores", COMPUTE, scores, "batch sequence heads groups width window",               \
     "qkv:r scores:w", "products of queries and the keys they see, over root width; others 0")     \
  X (WEFT_OP_SOFTMAX, "softmax", COMPUTE, square2, "batch sequence heads groups width window", "scores:r p:w",         \
     "over the keys a query sees; others 0")                                                       \
  X (WEFT_OP_CONTEXT, "context", COMPUTE, scores, "batch sequence heads groups width window",             \
     "p:r qkv:r o:w", "sum of values by probability")                                              \
  X (WEFT_OP_CONTEXT_BWD, "context_bwd", COMPUTE, scores, "batch sequence heads groups width window",     \
     "do:r qkv:r dp:w", "gradients of probabilities")                                              \
  X (WEFT_OP_SOFTMAX_BWD, "softmax_bwd", COMPUTE, square3, "batch sequence heads groups width window", "dp:rw p:r",    \
     "gradients of scores, in place")                                                              \
  X (WEFT_OP_SCORES_BWD, "scores_bwd", COMPUTE, scores_bwd, "batch sequence heads groups width window",   \
     "ds:r p:r do:r qkv:r dqkv:w", "gradients of queries, keys and values")                        \
  X (WEFT_OP_DROPOUT, "dropout", COMPUTE, drop2, "rows tokens columns site drop",               \
     "x:r y:w mask:w", "drop of 2^32 elements become 0, the others grow; mask: kernels/drop.h")    \
  X (WEFT_OP_DROPOUT_ADD, "dropout_add", COMPUTE, drop3, "rows tokens columns site drop",       \
     "a:r b:r y:w mask:w", "a + dropout of b")                                                     \
  X (WEFT_OP_DROPOUT_BWD, "dropout_bwd", COMPUTE, drop2, "rows tokens columns site drop",       \
     "dy:r mask:r dx:w", "gradients of what was kept")                                             \
  X (WEFT_OP_ATTENTION_PART, "attention_part", COMPUTE, attention_part,                            \
     "tokens keys heads groups width window value", "qkv:r kv:r o:w lse:w",                              \
     "attention of this rank's queries to keys of one sequence, or to those of the rank -peer places "\
     "before; a query that sees none gets 0, and minus infinity for lse")                          \
  X (WEFT_OP_ATTENTION_PART_BWD, "attention_part_bwd", COMPUTE, attention_part_bwd,                \
     "tokens keys heads groups width window value", "qkv:r kv:r o:r lse:r do:r dq:rw dkv:rw",            \
     "its gradient, with o and lse of all parts; dq is the queries' part of dqkv")                 \
  X (WEFT_OP_ATTENTION_MERGE, "attention_merge", COMPUTE, merge, "tokens heads width",             \
     "o:rw lse:rw part_o:r part_lse:r", "one softmax out of two parts of it")                      \
  X (WEFT_OP_TAKE_KV, "take_kv", COMPUTE, kv, "tokens heads groups width value", "qkv:r kv:w",           \
     "keys and values out of rows that begin with queries")                                        \
  X (WEFT_OP_PUT_KV, "put_kv", COMPUTE, kv, "tokens heads groups width value", "kv:r qkv:rw",            \
     "the inverse: into their columns")                                                            \
  X (WEFT_OP_SPLIT_SEQUENCE, "split_sequence", COMPUTE, zigzag, "members batch rows columns",      \
     "x:r y:w", "slice m of y has pieces m and 2 members - 1 - m of each sequence of x")           \
  X (WEFT_OP_JOIN_SEQUENCE, "join_sequence", COMPUTE, zigzag, "members batch rows columns",        \
     "x:r y:w", "the inverse: whole sequences out of the members' slices; with peer -1 slice j is that "\
     "of the member j places before")                                                              \
  X (WEFT_OP_SPLIT_HEADS, "split_heads", COMPUTE, deal, "tokens members heads groups width value", \
     "x:r y:w", "slice m of y has part m of the heads of queries, of keys and of values")          \
  X (WEFT_OP_JOIN_HEADS, "join_heads", COMPUTE, deal, "tokens members heads groups width value",   \
     "x:r y:w", "the inverse: rows of all heads")                                                  \
  X (WEFT_OP_KEEP_PIECE, "keep_piece", COMPUTE, keep, "elements pieces", "x:rw",                   \
     "clear all but this rank's piece, among those that share a sequence; where there are fewer "  \
     "pieces than ranks, neighbours have the same")                                                \
  X (WEFT_OP_GELU, "gelu", COMPUTE, pass2, "rows columns", "x:r y:w",                              \
     "Gaussian error linear unit, by the form that the model's activation names")                  \
  X (WEFT_OP_GELU_BWD, "gelu_bwd", COMPUTE, pass3, "rows columns", "x:r dy:r dx:w",                \
     "its gradient")                                                                               \
  X (WEFT_OP_SWIGLU, "swiglu", COMPUTE, pass3, "rows columns", "gate_up:r y:w",                    \
     "silu(gate) * up, or with activation = geglu gelu(gate) * up; gate_up is (rows, 2 columns)")  \
  X (WEFT_OP_SWIGLU_BWD, "swiglu_bwd", COMPUTE, pass5, "rows columns",                             \
     "gate_up:r dy:r dgate_up:w", "its gradient")                                                  \
  X (WEFT_OP_RELU, "relu", COMPUTE, pass2, "rows columns", "x:r y:w", "max(x, 0)")                 \
  X (WEFT_OP_RELU_BWD, "relu_bwd", COMPUTE, pass3, "rows columns", "x:r dy:r dx:w",                \
     "its gradient")                                                                               \
  X (WEFT_OP_RELU2, "relu2", COMPUTE, pass2, "rows columns", "x:r y:w", "max(x, 0)^2")             \
  X (WEFT_OP_RELU2_BWD, "relu2_bwd", COMPUTE, pass3, "rows columns", "x:r dy:r dx:w",              \
     "its gradient")                                                                               \
  X (WEFT_OP_LATENT_SPLIT, "latent_split", COMPUTE, latent_split, "tokens rank rope parts",        \
     "x:r latent:w position:w",                                                                    \
     "of each token its latent, and the part of its keys that is turned by position; of several parts "\
     "this rank's tokens")                                                                         \
  X (WEFT_OP_LATENT_SPLIT_BWD, "latent_split_bwd", COMPUTE, latent_split, "tokens rank rope parts", \
     "dlatent:r dposition:r dx:w", "its gradient")                                                 \
  X (WEFT_OP_LATENT_JOIN, "latent_join", COMPUTE, latent_join, "tokens heads nope rope value",     \
     "q:r kv:r position:r qkv:w",                                                                  \
     "heads of queries, turned, of keys, which share their position, and of values")               \
  X (WEFT_OP_LATENT_JOIN_BWD, "latent_join_bwd", COMPUTE, latent_join,                             \
     "tokens heads nope rope value leaves", "dqkv:r dq:w dkv:w dposition:w", "its gradient")       \
  X (WEFT_OP_MOE_ROUTE, "moe_route", COMPUTE, route, "tokens experts topk",                         \
     "logits:r bias:r? scores:w choice:w prob:w",                                                  \
     "the experts of each token, by number, and their weights; scores are fp32; bias: for the choice "\
     "alone")                                                                                      \
  X (WEFT_OP_MOE_ROUTE_BWD, "moe_route_bwd", COMPUTE, route, "tokens experts topk",                \
     "scores:r choice:r dprob:r dlogits:w", "gradient of the weights, to the logits")              \
  X (WEFT_OP_MOE_TALLY, "moe_tally", COMPUTE, tally, "tokens experts topk", "choice:r tally:rw",   \
     "tally(expert) += tokens that chose it, as fp32")                                             \
  X (WEFT_OP_MOE_BALANCE, "moe_balance", COMPUTE, pass3, "layers experts", "tally:r bias:rw",      \
     "the bias of experts with less than the mean of their layer grows by a step, of those with more it "\
     "shrinks")                                                                                    \
  X (WEFT_OP_MOE_SORT, "moe_sort", COMPUTE, sort, "tokens topk experts capacity padded leaves",    \
     "choice:r prob:r counts:w row:w",                                                             \
     "counts of each expert, and the row of each (token, expert); over capacity the least weights "\
     "are dropped; padded: experts begin capacity rows apart; leaves: counts of each, 0: as "          \
     "kernels/sums.h cuts tokens")                                     \
  X (WEFT_OP_MOE_PERMUTE, "moe_permute", COMPUTE, permute, "tokens columns each rows",             \
     "x:r row:r y:w", "y(row of (token, expert)) = x(token), 0 where there is nobody")             \
  X (WEFT_OP_MOE_UNPERMUTE, "moe_unpermute", COMPUTE, permute, "tokens columns each rows experts", \
     "x:r row:r choice:r? y:w", "y(token) = sum of its rows, in the order of the experts")         \
  X (WEFT_OP_MOE_GROUP, "moe_group", COMPUTE, pass2, "rows columns experts sources stride inner",  \
     "counts:r x:r y:w",                                                                           \
     "rows by (source, expert) become rows by (expert, source); sources come with every inner-th "  \
     "together, the first of them first")                                                          \
  X (WEFT_OP_MOE_UNGROUP, "moe_ungroup", COMPUTE, pass2, "rows columns experts sources stride inner", \
     "counts:r x:r y:w", "the inverse")                                                            \
  X (WEFT_OP_MOE_TURN, "moe_turn", COMPUTE, turn, "a b leaves", "x:r y:w",                         \
     "counts(a, b, leaf) become counts(b, a, leaf)")                                               \
  X (WEFT_OP_MOE_MATMUL, "moe_matmul", COMPUTE, moe_matmul, "m n k experts stride leaves tail",    \
     "x:r w:r counts:r y:w", "y = x w^T, expert by expert, for the rows it has; m in all; leaves, tail: as those of matmul")         \
  X (WEFT_OP_MOE_MATMUL_DGRAD, "moe_matmul_dgrad", COMPUTE, moe_matmul,                           \
     "m n k experts stride leaves tail", "dy:r w:r counts:r dx:w", "dx = dy w")                                                        \
  X (WEFT_OP_MOE_MATMUL_WGRAD, "moe_matmul_wgrad", COMPUTE, moe_wgrad,                            \
     "m n k experts stride sources parts",                                                         \
     "dy:r x:r counts:r dw:rw",                                                                    \
     "dw += dy^T x; in canonical order for each slice of dw by itself, which as many of the sources "\
     "have rows for; a leaf is that many counts in a row")                     \
  X (WEFT_OP_MOE_FP8_MATMUL, "moe_fp8_matmul", COMPUTE, moe_fp8_matmul,                            \
     "m n k experts stride leaves tail block", "x:r x_scale:r w:r w_scale:r counts:r y:w",         \
     "moe_matmul of two factors of one byte; block 0: scales are largest magnitudes, of x by groups of "\
     "an expert's rows, of w by expert; 32 and 128: of so many terms, of w with 128 for squares")  \
  X (WEFT_OP_MOE_FP8_MATMUL_DGRAD, "moe_fp8_matmul_dgrad", COMPUTE, moe_fp8_matmul,                \
     "m n k experts stride leaves tail block", "dy:r dy_scale:r w:r w_scale:r counts:r dx:w",      \
     "moe_matmul_dgrad, likewise; w as it lies in forward, with blocks of 32 along its terms")     \
  X (WEFT_OP_MOE_FP8_MATMUL_WGRAD, "moe_fp8_matmul_wgrad", COMPUTE, moe_fp8_wgrad,                 \
     "m n k experts stride sources parts block", "dy:r dy_scale:r x:r x_scale:r counts:r dw:rw",   \
     "moe_matmul_wgrad, likewise; rows as they lie in forward, with blocks down the rows of a group") \
  X (WEFT_OP_MOE_ACT, "moe_act", COMPUTE, moe_act, "rows columns experts stride wide",             \
     "u:r prob:r? counts:r y:w",                                                                   \
     "y = the model's nonlinearity of u, times the row's weight; u is (rows, wide columns)")       \
  X (WEFT_OP_MOE_ACT_BWD, "moe_act_bwd", COMPUTE, moe_act_bwd,                                     \
     "rows columns experts stride wide leaves", "u:r prob:r? counts:r dy:r du:w dprob:w?",         \
     "its gradients; leaves: of the sum over columns that is dprob")                               \
  X (WEFT_OP_MOE_WEIGH, "moe_weigh", COMPUTE, pass2, "rows columns experts stride",                \
     "x:r prob:r counts:r y:w", "y = x times the row's weight: before experts, not behind them")   \
  X (WEFT_OP_MOE_WEIGH_BWD, "moe_weigh_bwd", COMPUTE, pass3, "rows columns experts stride",        \
     "x:r prob:r counts:r dy:r dx:w dprob:w", "its gradients")                                     \
  X (WEFT_OP_GATE, "gate", COMPUTE, pass2, "rows columns", "x:r logit:r y:w",                      \
     "y = x times the logistic function of the row's logit")                                       \
  X (WEFT_OP_GATE_BWD, "gate_bwd", COMPUTE, pass3, "rows columns",                                 \
     "x:r logit:r dy:r dx:w dlogit:w", "its gradients")                                            \
  X (WEFT_OP_MOE_FOLD, "moe_fold", COMPUTE, slices, "elements slices", "x:r y:w",                  \
     "y = sum of the slices of x as fold.h says, every node rounded")                              \
  X (WEFT_OP_MOE_SQUARES, "moe_squares", COMPUTE, pass1, "elements", "squares:rw more:r",          \
     "squares += more: what ranks that hold other experts have measured")                          \
  X (WEFT_OP_ADD, "add", COMPUTE, pass3, "rows columns", "a:r b:r y:w", "residual connection")     \
  X (WEFT_OP_ADD_NORM, "add_norm", COMPUTE, pass4, "rows columns",                                 \
     "a:r b:r weight:r bias:r? sum:w y:w", "add, and the norm of the sum as it is stored")         \
  X (WEFT_OP_MATMUL_GELU, "matmul_gelu", COMPUTE, matmul_gelu, "m n k leaves tail kept",           \
     "x:r w:r b:r? pre:w? y:w",                                                                    \
     "pre = matmul, y = gelu of it; a GPU may take it before pre is rounded; kept: pre is there")  \
  X (WEFT_OP_MATMUL_DGRAD_GELU, "matmul_dgrad_gelu", COMPUTE, matmul_dgrad_gelu,                   \
     "m n k leaves tail", "dy:r w:r pre:r dx:w",                                                   \
     "dx = matmul_dgrad times gelu's slope at pre, likewise")                                      \
  X (WEFT_OP_SOFTCAP, "softcap", COMPUTE, pass2, "rows columns", "x:rw",                           \
     "c tanh (x / c) with c = final_logit_softcapping, in place; what takes the gradient of such "  \
     "logits multiplies it by 1 - (x / c)^2")                                                      \
  X (WEFT_OP_XENT, "xent", COMPUTE, pass1, "rows columns leaves whole own",                        \
     "logits:r targets:r lse:w count:rw? loss:rw",                                                 \
     "loss += sum of cross entropies; count += rows; lse is fp32 per row; whole: columns of all ranks, "\
     "those past it are padding; own: kernels/soft.h")                                             \
  X (WEFT_OP_SCALE_LOSS, "scale_loss", COMPUTE, pass1, "elements", "gradient:w",                   \
     "gradient = the loss scale: what backward of a microbatch begins with")                       \
  X (WEFT_OP_XENT_BWD, "xent_bwd", COMPUTE, pass2, "rows columns tokens whole depth",              \
     "logits:rw targets:r lse:r gradient:r?",                                                      \
     "logits become their gradient, divided by tokens: what the loss is a mean over; times that of "\
     "the loss")                                                                                   \
  X (WEFT_OP_XENT_GRAD, "xent_grad", COMPUTE, pass2, "rows columns leaves whole depth tokens",     \
     "logits:rw targets:r count:rw? gradient:r? loss:rw",                                          \
     "xent and xent_bwd of logits that are read once: nobody is told lse")                         \
  X (WEFT_OP_GRAD_ADD, "grad_add", COMPUTE, pass3, "elements", "main:rw grad:r",                   \
     "main += grad: accumulation that is not fused into the matmul")                               \
  X (WEFT_OP_ZERO, "zero", COMPUTE, pass1, "elements", "x:w", "clear")                             \
  X (WEFT_OP_FILL, "fill", COMPUTE, pass1, "elements", "x:w",                                      \
     "first weights, at random or constant; where numbers are real state.h sets them")             \
  X (WEFT_OP_SCALE, "scale", COMPUTE, pass2, "elements one divisor times", "x:rw count:r?",        \
     "x /= divisor (and times, where there is one), or by the larger of 1 and count where that is "\
     "given")                          \
  X (WEFT_OP_SUM_SLICES, "sum_slices", COMPUTE, slices, "elements slices", "x:r y:w",              \
     "y = sum of the slices of x, in fp32, rounded once")                                          \
  X (WEFT_OP_PACK, "pack", COMPUTE, repack, "elements slices piece", "x:r y:w",                    \
     "tensors one after the other, cut into pieces of rows: slice r of y has piece r of each, zeros "\
     "where there are fewer rows; piece 0: as the parameters of the op's layer are cut")           \
  X (WEFT_OP_UNPACK, "unpack", COMPUTE, repack, "elements slices piece", "x:r y:w",                \
     "the inverse: slice r of x has piece r of each tensor")                                       \
  X (WEFT_OP_RELEASE, "release", COMPUTE, nothing, "", "x:r",                                      \
     "the framework held x until here; nothing is computed")                                       \
  X (WEFT_OP_TIMER, "timer", COMPUTE, nothing, "starts", "",                                       \
     "the host waits for the device and reads a clock: a phase that is measured starts or ends")   \
  X (WEFT_OP_CAST, "cast", COMPUTE, cast, "elements one divisor", "x:r y:w",                       \
     "convert to the type of y, divided by divisor where there is one")                            \
  X (WEFT_OP_AMAX, "amax", COMPUTE, pass1, "elements", "x:r amax:rw",                              \
     "amax of each tensor = its largest magnitude, as far as this slice goes")                     \
  X (WEFT_OP_AMAX_UPDATE, "amax_update", COMPUTE, pass2, "elements", "seen:r amax:rw",             \
     "amax = seen where that is a number above 0; who has seen nothing keeps what was there")      \
  X (WEFT_OP_QUANTISE, "quantise", COMPUTE, cast, "elements", "x:r amax:r y:w",                    \
     "y = fp8 of x times the largest number of that type / amax of its tensor")                    \
  X (WEFT_OP_QUANTISE_DELAYED, "quantise_delayed", COMPUTE, cast, "elements",                      \
     "x:r amax:r y:w seen:rw",                                                                     \
     "quantise by a magnitude from before; seen = the largest so far of what really came")         \
  X (WEFT_OP_QUANTISE_BLOCKS, "quantise_blocks", COMPUTE, quantise_blocks, "rows columns block square copies", \
     "x:r y:w? scale:w? yt:w? scale_t:w?",                                                         \
     "y = fp8 of x over a power of two for `block` elements of a row, or with square 1 for as many rows "\
     "and columns; yt the same of the transposed x; copies: one or both")                          \
  X (WEFT_OP_MOE_AMAX, "moe_amax", COMPUTE, pass1, "rows columns groups stride",                   \
     "x:r counts:r? amax:w",                                                                       \
     "largest magnitude of each group of rows, as counts say, or with a stride or without counts of "\
     "equal ones")                                                                                 \
  X (WEFT_OP_MOE_QUANTISE, "moe_quantise", COMPUTE, cast, "rows columns groups stride",            \
     "x:r counts:r? amax:r y:w seen:rw?",                                                          \
     "quantise of each group by itself; seen: as of quantise_delayed")                             \
  X (WEFT_OP_MOE_QUANTISE_BLOCKS, "moe_quantise_blocks", COMPUTE, moe_quantise_blocks,             \
     "rows columns groups stride block square copies",                                             \
     "x:r counts:r? y:w? scale:w? yt:w? scale_t:w?",                                               \
     "quantise_blocks of each group by itself; yt lies as y does, with blocks down the rows")      \
  X (WEFT_OP_TRANSPOSE, "transpose", COMPUTE, pass2, "rows columns", "x:r y:w",                    \
     "y(j,i) = x(i,j), of one byte each")                                                          \
  X (WEFT_OP_GRAD_NORM, "grad_norm", COMPUTE, pass1, "elements", "grad:r squares:rw",              \
     "squares += sum of squares of what this rank answers for")                                    \
  X (WEFT_OP_BUCKET_NORM, "bucket_norm", COMPUTE, pass1, "elements", "grad:r squares:w",           \
     "squares = sum of squares of a whole bucket")                                                 \
  X (WEFT_OP_UNSCALE, "unscale", COMPUTE, pass2, "elements", "grad:rw found:rw",                   \
     "grad /= the loss scale; found = 1 when an element is not finite")                            \
  X (WEFT_OP_CLIP, "clip", COMPUTE, none, "", "squares:r? found:r? factor:w",                      \
     "factor = min(1, limit / norm), or 1 without squares; 0 when the norm is not finite, or found "\
     "is not 0")                                                                                   \
  X (WEFT_OP_ADAM, "adam", COMPUTE, adam, "elements itself drawn",                                 \
     "grad:r factor:r? param:rw? master:rw? m:rw v:rw",                                            \
     "AdamW; master is absent when param is updated itself, as fp32 is; where it is not, param may be "\
     "written only, or absent; drawn: param, in bf16, is rounded by lot (kernels/draw.h)")         \
  X (WEFT_OP_BIAS, "bias", COMPUTE, pass2, "rows columns", "x:r b:r y:w",                          \
     "y(m,n) = x(m,n) + b(n), where a sum over several ranks is complete")                         \
  X (WEFT_OP_ADD_POSITIONS, "add_positions", COMPUTE, pass3, "tokens hidden parts",                \
     "x:r positions:r y:w", "y = token plus position vectors; of several parts this rank's rows")  \
  X (WEFT_OP_NORM_DGRAD, "norm_dgrad", COMPUTE, pass4, "rows columns",                             \
     "dy:r x:r weight:r dresidual:r? dx:w", "norm_bwd without the weights")                        \
  X (WEFT_OP_NORM_WGRAD, "norm_wgrad", COMPUTE, pass2, "rows columns",                             \
     "dy:r x:r dweight:rw dbias:rw?", "the weights' gradients of norm_bwd")                        \
  X (WEFT_OP_HEAD_NORM_DGRAD, "head_norm_dgrad", COMPUTE, pass3, "rows columns",                   \
     "dqkv:rw raw:r q_weight:r k_weight:r", "head_norm_bwd without the weights")                   \
  X (WEFT_OP_HEAD_NORM_WGRAD, "head_norm_wgrad", COMPUTE, pass2, "rows columns parts alike",             \
     "dqkv:r raw:r dq_weight:rw dk_weight:rw",                                                     \
     "the weights' gradients of head_norm_bwd, over the heads of several ranks, one rank's tokens "\
     "after the other's; of so many ranks that have the same heads once")                                                                          \
  X (WEFT_OP_SETTLE, "settle", COMPUTE, nothing, "elements parts", "own:r came:r all:w",           \
     "pieces of ranks in the order in which a ring brought them, in that of ranks; a real product "\
     "finds and leaves them there: no time")                                                       \
  X (WEFT_OP_JOIN_COLUMNS, "join_columns", COMPUTE, join, "rows columns parts copies", "x:r y:w",  \
     "rows whose columns came in parts; likewise, unless it copies")                               \
  X (WEFT_OP_TAKE_PART, "take_part", COMPUTE, take, "rows columns row_parts column_parts",         \
     "x:r y:w", "this rank's rows, or columns, of what all of them have")                          \
  X (WEFT_OP_TAKE_HEADS, "take_heads", COMPUTE, heads, "tokens parts heads groups width taken",    \
     "x:r y:w",                                                                                    \
     "this rank's queries, and the keys and values of the group that it shares with others, out of the "\
     "parts [q | k | v] of all ranks; taken: enum weft_heads_taken")                               \
  X (WEFT_OP_PUT_HEADS, "put_heads", COMPUTE, put_heads, "tokens parts heads groups width taken",  \
     "x:r y:w",                                                                                    \
     "the inverse: what it has, in the parts of those it belongs to, and 0 in others; of what all ranks " \
     "of a group have, this rank's part alone")                                                    \
  X (WEFT_OP_CONCAT, "concat", COMPUTE, latent_split, "rows a b", "a:r b:r y:w",                   \
     "rows of a columns, each followed by one of b columns")                                       \
  X (WEFT_OP_CONCAT_BWD, "concat_bwd", COMPUTE, latent_split, "rows a b", "dy:r a:w b:w",        \
     "its gradient: the two apart")                                                 \
  X (WEFT_OP_XENT_MAX, "xent_max", COMPUTE, pass1, "rows columns leaves whole", "logits:r most:w", \
     "largest logit of each row, in fp32")                                                         \
  X (WEFT_OP_XENT_PART, "xent_part", COMPUTE, pass1, "rows columns leaves whole",                  \
     "logits:r targets:r most:r? part:w",                                                          \
     "of each row the logit of its target and the sum of exponentials, in fp32; where the largest is "\
     "not given this rank's own comes first")                                                      \
  X (WEFT_OP_XENT_END, "xent_end", COMPUTE, stats, "rows parts",                                   \
     "stats:r lse:w count:rw? loss:rw targets:r",                                                  \
     "xent from what the parts of the vocabulary have: largest, target, sum")                      \
  X (WEFT_OP_ALL_REDUCE, "all_reduce", COLLECTIVE, none, "elements divisor", "x:rw",               \
     "reduce, to all")                                                                             \
  X (WEFT_OP_REDUCE_SCATTER, "reduce_scatter", COLLECTIVE, none, "elements divisor", "x:rw y:w",   \
     "reduce, slice r of x to member r, in place")                                                 \
  X (WEFT_OP_ALL_GATHER, "all_gather", COLLECTIVE, none, "elements", "x:r y:w",                    \
     "slice of each member, to all, in place")                                                     \
  X (WEFT_OP_ALL_TO_ALL, "all_to_all", COLLECTIVE, none, "elements", "x:r y:w",                    \
     "slice i of member j to slice j of member i")                                                 \
  X (WEFT_OP_SHIFT, "shift", COLLECTIVE, none, "elements", "x:r y:w",                              \
     "x of each member to the next one, of the last to the first; with peer -1 the other way round, with "\
     "peer n to the n-th after it") \
  X (WEFT_OP_ALL_TO_ALL_V, "all_to_all_v", COLLECTIVE, none, "elements columns",                   \
     "x:r send:r y:w got:r",                                                                       \
     "rows of `columns` elements: part i of member j's counts says how many go to member i, where they "\
     "lie in the order of the members, and part j of what member i got the same; elements: how many are "\
     "planned")                                                                                    \
  X (WEFT_OP_ALL_GATHER_V, "all_gather_v", COLLECTIVE, none, "elements columns",                   \
     "x:r counts:r y:w",                                                                           \
     "rows of `columns` elements of each member, to all: part i of the counts, which all have alike, " \
     "says how many are member i's; elements: how many are planned in all")                        \
  X (WEFT_OP_REDUCE_SCATTER_V, "reduce_scatter_v", COLLECTIVE, none, "elements columns",           \
     "x:r counts:r y:w", "the inverse: rows of all are reduced, and each member gets its own")     \
  X (WEFT_OP_BROADCAST, "broadcast", COLLECTIVE, none, "elements", "x:rw",                         \
     "from member 0 to all; with peer -1 from the last member")                                    \
  X (WEFT_OP_SEND, "send", P2P, none, "elements", "x:r", "to a neighbour stage")                   \
  X (WEFT_OP_RECV, "recv", P2P, none, "elements", "x:w", "from a neighbour stage")                 \
  X (WEFT_OP_COPY_IN, "copy_in", COPY, none, "elements ahead", "x:w",                              \
     "from the host: tokens; so many further ahead, and past the end of a sequence 0, or -1 where they "\
     "are targets") \
  X (WEFT_OP_COPY_OUT, "copy_out", COPY, none, "elements", "x:r",                                  \
     "to the host: loss and norm, or one number or table that it waits for")                                \
  X (WEFT_OP_TO_HOST, "to_host", COPY, none, "elements first", "x:r y:w",                          \
     "y = elements of x from `first` on: from the GPU into a buffer of the host pool")             \
  X (WEFT_OP_FROM_HOST, "from_host", COPY, none, "elements first", "x:r y:w",                      \
     "elements of y from `first` on = x: from a buffer of the host pool to the GPU")

enum weft_op_kind {
#define WEFT_OP_ROW(id, ...) id,
  WEFT_OP_LIST (WEFT_OP_ROW)
#undef WEFT_OP_ROW
      WEFT_N_OP
};

/* Where dropout takes elements: the `site` of its ops, whose draws are independent. */
enum weft_drop_site {
  WEFT_DROP_EMBEDDING,
  WEFT_DROP_PROBABILITIES,
  WEFT_DROP_ATTENTION,
  WEFT_DROP_MLP,
};

/* What take_heads and put_heads have of a group that ranks share: this rank's queries with keys and values,
 * those of all these ranks, or no more than their queries, whose parts have nothing else. */
enum weft_heads_taken { WEFT_HEADS_OWN, WEFT_HEADS_OF_GROUP, WEFT_HEADS_QUERIES };

/* Interned: a program holds a few dozen.  Dimensions are in the op's own order, unused ones 0. */
struct weft_shape {
  uint64_t dim[8];
  uint8_t dtype;     /* of the operands */
  uint8_t out_dtype; /* of what is accumulated or written, where it differs */
  uint8_t pad[6];
};

struct weft_op_info {
  const char *word;
  enum weft_op_class class;
  const char *dims, *operands, *doc;
  double (*flops) (const struct weft_shape *shape);
  double (*bytes) (const struct weft_shape *shape); /* memory traffic; payload for communication */
};
extern const struct weft_op_info weft_op_info[WEFT_N_OP];

/* Everyone has something for everyone. */
static inline int
weft_op_swaps (enum weft_op_kind kind)
{
  return kind == WEFT_OP_ALL_TO_ALL || kind == WEFT_OP_ALL_TO_ALL_V;
}

/* Of an op whose members have unlike shares, that in which they have equal ones. */
static inline enum weft_op_kind
weft_op_even (enum weft_op_kind kind)
{
  return kind == WEFT_OP_ALL_GATHER_V       ? WEFT_OP_ALL_GATHER
         : kind == WEFT_OP_REDUCE_SCATTER_V ? WEFT_OP_REDUCE_SCATTER
         : kind == WEFT_OP_ALL_TO_ALL_V     ? WEFT_OP_ALL_TO_ALL
                                            : kind;
}

static inline int
weft_op_is_comm (enum weft_op_kind kind)
{
  return weft_op_info[kind].class == WEFT_CLASS_COLLECTIVE ||
         weft_op_info[kind].class == WEFT_CLASS_P2P;
}

/* Which way a copy goes over the host link. */
static inline int
weft_op_enters_device (enum weft_op_kind kind)
{
  return kind == WEFT_OP_COPY_IN || kind == WEFT_OP_FROM_HOST;
}

#define WEFT_REDUCE_LIST(X)                                                                        \
  X (WEFT_REDUCE_SUM, "sum", "plain sum")                                                          \
  X (WEFT_REDUCE_AVG, "avg", "sum divided by the size of the group")                               \
  X (WEFT_REDUCE_PREMUL, "premul_sum", "sum of what each has divided by the shape's divisor")      \
  X (WEFT_REDUCE_MIN, "min", "smallest")                                                           \
  X (WEFT_REDUCE_MAX, "max", "largest")
enum weft_reduce { WEFT_REDUCE_LIST (WEFT_WORD_ID) };
extern const char *const weft_reduce_words[];

extern const char *const weft_op_words[]; /* NULL-terminated */
enum weft_lane weft_group_lane (enum weft_group_kind kind);
