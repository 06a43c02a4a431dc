/* base/limits.h: the maximum of every growing thing, in one place. */
#ifndef OB_BASE_LIMITS_H
#define OB_BASE_LIMITS_H

/* Model files */
#define OB_MAX_TENSORS (1u << 17)
#define OB_MAX_KV_PAIRS (1u << 16)
#define OB_MAX_KEY_BYTES (1u << 16)       /* GGUF: keys are at most 65,535 bytes */
#define OB_MAX_TENSOR_NAME_BYTES 256u
#define OB_MAX_STRING_BYTES (1u << 26)    /* one metadata string (chat templates are the largest) */
#define OB_MAX_KV_STRINGS (1u << 22)      /* in all metadata of a file together */
#define OB_MAX_DIMS 4
#define OB_MAX_ST_HEADER_BYTES (32u << 20) /* of a safetensors file */
#define OB_MAX_SPLITS 1024u
#define OB_MAX_SUMS_BYTES (64u << 20)     /* the text beside a 1BP package: a line for each tensor */
#define OB_MAX_VOCAB (1u << 22)
#define OB_MAX_VOCAB_BYTES (1u << 30)      /* all token texts together */
#define OB_MAX_TOK_TEXT_BYTES (1u << 30)   /* text of one encode call */

/* Requests */
#define OB_MAX_BODY_BYTES (64u << 20)
#define OB_MAX_HEADER_BYTES (64u << 10)
#define OB_MAX_MESSAGES 16384u
#define OB_MAX_STOP_STRINGS 64u
#define OB_MAX_STOP_BYTES 1024u
#define OB_MAX_LOGIT_BIAS 4096u
#define OB_MAX_TOP_LOGPROBS 20u
#define OB_MAX_DRAFT_TOK 16u                 /* tried ahead by speculative decoding */
#define OB_MAX_N_CHOICES 128u
#define OB_MAX_JSON_DEPTH 128u
#define OB_MAX_JSON_ALLOC_BYTES (512u << 20) /* what parsing one body may allocate in all */
#define OB_MAX_BODIES_BYTES (256u << 20)     /* bodies of all connections together */
#define OB_MAX_REQUEST_ARENA_BYTES (64u << 20)
#define OB_MAX_REPLY_BYTES (256u << 20)
#define OB_MAX_BACKLOG_BYTES (2u << 20)      /* of a stream whose reader is slow */
#define OB_MAX_PROMPTS 256u                  /* of one completions request */
#define OB_MAX_EMBED_TEXTS 2048u             /* of one embeddings or rerank request */

/* Templates */
#define OB_MAX_TEMPLATE_BYTES (1u << 20)
#define OB_MAX_RENDER_BYTES (64u << 20)
#define OB_MAX_RENDER_STEPS 4000000u   /* under half a second; 64 bytes handled are a step, too */
#define OB_MAX_PROBE_BYTES (1u << 20)  /* at load a template is tried on a few tiny conversations */
#define OB_MAX_PROBE_STEPS 200000u

/* Reference arrays (.npz): the file, and each array unpacked */
#define OB_MAX_NPZ_BYTES (1 << 30)

/* Pictures */
#define OB_MAX_IMAGE_BYTES (48u << 20)       /* of a file; a request's body is bounded on its own */
#define OB_MAX_IMAGE_SIDE 16384
#define OB_MAX_IMAGE_PIXELS 64000000
#define OB_MAX_JPEG_SCANS 100                /* a progressive file may ask for endless work */
#define OB_MAX_IMAGES 64u                    /* of one request */
#define OB_MAX_IMAGE_TOK 4096                /* tokens that one picture may take, all its tiles together */
#define OB_MAX_PICTURE_CACHE_BYTES (256u << 20) /* vectors of pictures kept for the next request */

/* Engine */
#define OB_MAX_SEQS 256
#define OB_MAX_CTX (1 << 22)
#define OB_MAX_UBATCH 16384
#define OB_MAX_THREADS 256

#endif
