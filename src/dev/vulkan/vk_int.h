/* dev/vulkan/vk_int.h: what the files of the Vulkan device share.
 *
 *   vk_loader.c   libvulkan, the instance, which physical devices there are
 *   vk_memory.c   blocks of device memory, the queue, uploads and downloads
 *   vk_pack.c     weights in the layout of shaders/weight.glsl
 *   vk_kernels.c  pipelines by kernel name and constants, the cache on disk
 *   vk_plan.c     a program becomes dispatches; vk_linear.c, vk_matvec.c, vk_attn.c, vk_attn_one.c,
 *                 vk_moe.c the ops with choices; vk_fuse.c several ops in one dispatch
 *   vk_time.c     how long dispatches take, guessed and measured
 *   vk_record.c   dispatches become command buffers with the barriers they need
 *   vk_run.c      a step: parameters, submit, wait, results, times
 *   vk_fault.c    faults on demand, for tests
 *   vk_selftest.c every op of a model against ops/ref.c
 *   vk_verdict.c  which tests were passed, in this process and on disk
 *   vk_test.c     fast kernels against ops/ref.c before they are used; vk_test_moe.c those of experts
 *
 * Everything belongs to the engine thread, but for the loader, which is made once under a lock and
 * immutable after.
 */
#ifndef OB_DEV_VULKAN_VK_INT_H
#define OB_DEV_VULKAN_VK_INT_H

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan_core.h>

#include "base/arena.h"
#include "base/threads.h"
#include "dev/device.h"
#include "ops/ops.h"

/* --- functions of libvulkan ------------------------------------------------------------------- */

#define VK_INSTANCE_FNS(X) \
    X(EnumeratePhysicalDevices) \
    X(GetPhysicalDeviceProperties2) X(GetPhysicalDeviceFeatures2) \
        X(GetPhysicalDeviceMemoryProperties2) X(GetPhysicalDeviceQueueFamilyProperties) \
            X(EnumerateDeviceExtensionProperties) X(CreateDevice) X(GetDeviceProcAddr)

#define VK_DEVICE_FNS(X) \
    X(DestroyDevice) \
    X(GetDeviceQueue) X(QueueSubmit2) X(QueueBindSparse) X(DeviceWaitIdle) X(AllocateMemory) X(FreeMemory) \
        X(MapMemory) X(CreateBuffer) X(DestroyBuffer) X(GetBufferMemoryRequirements) X( \
            BindBufferMemory) X(GetBufferDeviceAddress) X(CreateCommandPool) X(DestroyCommandPool) \
            X(AllocateCommandBuffers) X(FreeCommandBuffers) X(BeginCommandBuffer) \
                X(EndCommandBuffer) X(CmdBindPipeline) X(CmdPushConstants) X(CmdDispatch) \
                    X(CmdDispatchIndirect) X(CmdDispatchBase) X(CmdPipelineBarrier2) X(CmdCopyBuffer) \
                        X(CmdFillBuffer) X(CreateSemaphore) X(DestroySemaphore) X(WaitSemaphores) \
                            X(GetSemaphoreCounterValue) X(CreateShaderModule) \
                                X(DestroyShaderModule) X(CreatePipelineLayout) \
                                    X(DestroyPipelineLayout) X(CreateComputePipelines) \
                                        X(DestroyPipeline) X(CreatePipelineCache) \
                                            X(DestroyPipelineCache) X(GetPipelineCacheData) \
                                                X(CreateQueryPool) X(DestroyQueryPool) \
                                                    X(CmdResetQueryPool) X(CmdWriteTimestamp2) \
                                                        X(GetQueryPoolResults)

/* --- the machine ------------------------------------------------------------------------------ */

/* A cooperative matrix product that the device does: f16 inputs, f32 sums, subgroup scope. */
typedef struct vk_coopmat {
    bool f16_16x16x16;
    bool f16_sums; /* the same with f16 sums: what an accumulator can be converted to */
} vk_coopmat;

typedef struct vk_phys {
    VkPhysicalDevice handle;
    char name[128], driver[128];
    uint8_t cache_uuid[VK_UUID_SIZE];
    uint32_t vendor_id, device_id, driver_version;
    bool soft, integrated; /* soft: type CPU, an emulation */
    char missing[128];     /* what this device lacks; empty: usable */
    uint32_t queue_family;
    bool timestamps;
    float timestamp_ns;
    uint32_t n_cores; /* 0: it does not tell */
    uint32_t max_shared_bytes, max_invocations, max_subgroups; /* of a workgroup */
    uint32_t subgroup, subgroup_min,
        subgroup_max; /* default size; what may be asked for, 0 if nothing */
    bool subgroup_add, subgroup_shuffle, full_subgroups; /* shuffle: and vote */
    bool int_dot, f16, int8, memory_model, budget;
    bool sparse, sparse_queue; /* a buffer may be made of several allocations */
    vk_coopmat coopmat;
    uint32_t api; /* version of Vulkan */
    char matrices[160]; /* cooperative matrices there are, for people */
    uint64_t import_align; /* of host memory that may become a buffer's; 0: none may */
    uint64_t max_alloc_bytes, max_buffer_bytes; /* of one allocation; of one buffer */
    VkPhysicalDeviceMemoryProperties mem;
} vk_phys;

typedef struct vk_lib {
    VkInstance instance;
    PFN_vkGetInstanceProcAddr GetInstanceProcAddr;
#define X(name) PFN_vk##name name;
    VK_INSTANCE_FNS(X)
#undef X
    vk_phys *phys; /* real devices first */
    int n_phys;
    char missing[200]; /* why there is none */
} vk_lib;

/* Loaded at the first call; never NULL, n_phys is 0 where there is no Vulkan. Any thread. */
const vk_lib *vk_lib_get(void);
/* Free and total bytes of the largest heap of the device's own memory. */
void vk_phys_memory(const vk_lib *lib, const vk_phys *p, uint64_t *total, uint64_t *available);
/* Each heap; returns how many there are. */
int vk_phys_heaps(const vk_lib *lib, const vk_phys *p, ob_dev_heap heaps[VK_MAX_MEMORY_HEAPS]);
const char *vk_result_name(VkResult r);

/* --- device ----------------------------------------------------------------------------------- */

/* Which kernels may be used: everything the device can do, less what failed its test. */
enum {
    VK_FAST_SUBGROUP = 1 << 0,
    VK_FAST_INT8 = 1 << 1,
    VK_FAST_COOPMAT = 1 << 2,
    VK_FAST_ATTN = 1 << 3, /* attention of many tokens by cooperative matrices */
    VK_FAST_GLU = 1 << 4,  /* products by gate and up at once, by cooperative matrices */
    VK_FAST_FUSED = 1 << 5, /* products of few rows with the norm or GLU after them */
    VK_FAST_SAMPLE = 1 << 8, /* the best logits are found here */
};

typedef struct vk_shader {
    const char *name;
    const uint32_t *code;
    size_t n_bytes;
} vk_shader;
extern const vk_shader vk_shaders[]; /* made by the build; ends with a NULL name */

enum { VK_MAX_EXPERTS = 1024 }; /* of a mixture: a workgroup sorts by them */
enum { VK_MAX_SPEC = 28 };
typedef struct vk_pipe {
    const vk_shader *shader;
    uint32_t n_spec, spec[VK_MAX_SPEC];
    VkPipeline handle;
    VkPipeline base; /* the same for vkCmdDispatchBase; made when a dispatch is first cut */
} vk_pipe;

typedef struct vk_block vk_block;
typedef enum vk_mem_kind {
    VK_MEM_DEVICE,   /* the device's own */
    VK_MEM_PARAM,    /* written by the host, read by the device */
    VK_MEM_READBACK, /* written by the device, read by the host */
    VK_MEM_KINDS
} vk_mem_kind;
typedef struct vk_mem {
    vk_block *block;
    uint64_t off, size;
    VkDeviceAddress addr;
    uint8_t *map; /* NULL for VK_MEM_DEVICE, but where the device shares the host's memory */
} vk_mem;

typedef struct vk_profile {
    char name[80];
    uint64_t calls;
    double ms, flops, bytes;
} vk_profile;

/* How attn_one cuts its work. hb: heads that share what is loaded; ahead: keys loaded before any is used;
 * seg_min: tokens of a segment at least; max_seg: segments at most, 0: by the device's cores; subgroups: of a workgroup, at most. */
typedef struct vk_attn_tuning {
    uint32_t hb, ahead, seg_min, max_seg, subgroups;
} vk_attn_tuning;

enum { VK_STAGE_HALVES = 2, VK_STAGE_BYTES = 16 << 20, VK_MAX_PROFILE = 64 };
enum { VK_SUBMIT_MS = 50 }; /* longest submit that is made on purpose */
enum { VK_MAX_SUBMIT = 32 }; /* command buffers of one submit */

/* What attention by matrices was tested with. */
typedef struct vk_attn_shape {
    int32_t n_head, n_head_kv, k_dim, v_dim, window, page_tok;
} vk_attn_shape;
enum { VK_MAX_ATTN_TESTED = 16 };

/* What loading took, for people who look into it (--verbose). Pipelines and packing count where they happen, so tests
 * contain those that were made for them. */
typedef struct vk_load {
    int n_pipes, n_tests;
    double pipes_ms, tests_ms, pack_ms;
    uint64_t pack_bytes, import_bytes; /* copied; used where the file's pages are */
    bool import_refused;               /* and it was said */
} vk_load;

typedef struct vk_dev {
    ob_dev base;
    const vk_lib *lib;
    const vk_phys *phys;
    int index;
    bool exact, profile;
    bool import; /* weights may stay in the host's memory */
    PFN_vkGetMemoryHostPointerPropertiesEXT GetMemoryHostPointerPropertiesEXT; /* then; or NULL */
    bool testing; /* a test of kernels is at work */
    bool listing; /* tests only ask for their pipelines: plans are neither compiled nor run (vk_selftest.c) */
    const void *ahead_of; /* the program for which that was done last */
    bool tested_ops; /* some have been tested: `disabled` is news */
    bool lost;
    double submit_ms;        /* bound for one submit */
    double scale;            /* of the newest measurement: real over nominal milliseconds */
    uint64_t n_begun, lose_at, no_memory_at; /* steps; vk_fault.c */
    uint64_t n_submits;      /* of steps */
    unsigned fast;       /* VK_FAST_* that may be used */
    unsigned tested[64]; /* by ob_type: VK_FAST_* that passed their test with this weight type */
    vk_attn_shape attn_tested[VK_MAX_ATTN_TESTED];
    int n_attn_tested;
    unsigned tested_experts[64]; /* the same for mixtures of experts */
    unsigned tested_rotated;     /* the same for rotated Q4_0: VK_FAST_FUSED */
    char disabled[200];  /* names of kernels that were switched off */
    VkDevice handle;
    VkQueue queue;
#define X(name) PFN_vk##name name;
    VK_DEVICE_FNS(X)
#undef X
    VkCommandPool pool;
    VkSemaphore timeline;
    uint64_t last; /* value of the newest submit */
    vk_block *blocks[VK_MEM_KINDS];
    struct vk_work *works;
    uint64_t block_bytes[VK_MEM_KINDS]; /* of a usual block */
    uint64_t max_alloc_bytes;           /* the driver's, or less (OB_VK_MAX_ALLOC_MB) */
    uint64_t stage_bytes;               /* VK_STAGE_BYTES, or less where buffers must be small */
    vk_mem stage;                       /* VK_STAGE_HALVES x stage_bytes */
    vk_mem fetch;                       /* stage_bytes, for downloads */
    VkCommandBuffer stage_cmd[VK_STAGE_HALVES];
    uint64_t stage_done[VK_STAGE_HALVES];
    int stage_at;
    VkPipelineLayout layout;
    VkPipelineCache cache;
    size_t cache_bytes; /* of it that are on disk */
    vk_pipe **pipes; /* each stays where it is */
    size_t n_pipes, cap_pipes;
    size_t n_made, n_written; /* the first so many are compiled; on disk */
    ob_pool *host_pool; /* for packing and compiling; NULL: not made yet, or there is one thread */
    int n_host_threads;  /* as asked for */
    vk_load load;
    uint32_t sg;        /* subgroup size asked for */
    vk_attn_tuning attn;
    ob_dev_plan *timed; /* its last step's times are not read yet */
    ob_dev_plan *running; /* its step is not waited for yet */
    vk_profile prof[VK_MAX_PROFILE];
    int n_prof;
} vk_dev;

struct ob_dev_buf {
    vk_mem mem;
    uint64_t n_bytes;
};

struct ob_dev_weight {
    ob_weight desc; /* name and data not kept */
    ob_type type;   /* as stored on the device */
    vk_mem mem;
    VkDeviceAddress w, s, h, z;
    int64_t nu;          /* units of 32 a row */
    uint64_t read_bytes; /* what a product reads */
    float *vec;          /* VECTOR: the host's copy */
};

/* --- vk_memory.c ------------------------------------------------------------------------------ */
ob_status vk_error(vk_dev *d, VkResult r, const char *what, ob_err *err);
ob_status vk_mem_new(vk_dev *d, vk_mem_kind kind, uint64_t n, vk_mem *out, ob_err *err);
/* Memory of the host, [data, data + n), *borrowed* until vk_mem_free and not written by the device, as a buffer's:
 * for VK_EXT_external_memory_host with d->import. The pages it begins and ends in must be mapped whole. */
ob_status vk_mem_import(vk_dev *d, const void *data, uint64_t n, vk_mem *out, ob_err *err);
void vk_mem_free(vk_dev *d, vk_mem *m);
void vk_mem_deinit(vk_dev *d); /* all blocks */
ob_status vk_stage_init(vk_dev *d, ob_err *err);
/* n command buffers, 1..VK_MAX_SUBMIT, as one submit. */
ob_status vk_queue_submit(vk_dev *d, uint32_t n, const VkCommandBuffer *cmds, ob_err *err);
ob_status vk_queue_wait(vk_dev *d, uint64_t value, ob_err *err);
/* Largest buffer that can be had. */
uint64_t vk_max_buffer(const vk_dev *d);
/* Room for up to *n bytes that go to dst + off (*n may come back smaller), to be written front to back; then the
 * sending of n bytes. With memory that is shared with the host the room is the place itself. */
ob_status vk_stage_begin(vk_dev *d, const vk_mem *dst, uint64_t off, uint64_t *n, uint8_t **out, ob_err *err);
ob_status vk_stage_send(vk_dev *d, const vk_mem *dst, uint64_t off, uint64_t n, ob_err *err);
ob_status vk_upload(vk_dev *d, const vk_mem *dst, uint64_t off, const void *src, uint64_t n,
                    ob_err *err);
ob_status vk_download(vk_dev *d, const vk_mem *src, uint64_t off, void *dst, uint64_t n,
                      ob_err *err);
ob_status vk_copy(vk_dev *d, const vk_mem *dst, uint64_t dst_off, const vk_mem *src,
                  uint64_t src_off, uint64_t n, ob_err *err);
ob_status vk_zero(vk_dev *d, const vk_mem *m, uint64_t off, uint64_t n, ob_err *err);
VkBuffer vk_mem_buffer(const vk_mem *m);

/* --- vk_pack.c -------------------------------------------------------------------------------- */
ob_status vk_weight_new(ob_dev *d, const ob_weight *desc, ob_dev_weight **out, bool *keeps_data,
                        ob_err *err);
void vk_weight_free(ob_dev *d, ob_dev_weight *w);
ob_type vk_stored_type(const vk_dev *d, const ob_weight *desc); /* of a matrix here */
ob_status vk_weight_write(ob_dev *d, ob_dev_weight *w, int64_t expert, const void *data, ob_err *err);
uint64_t vk_weight_bytes(const ob_dev *d, const ob_weight *desc); /* that it will take here */

/* --- vk_kernels.c ----------------------------------------------------------------------------- */
ob_status vk_kernels_init(vk_dev *d, ob_err *err);
void vk_kernels_deinit(vk_dev *d);
bool vk_kernel_exists(const char *name);
/* A file of what is kept about this device, driver and driver version; false: there is no place for it. */
bool vk_cache_path(const vk_phys *p, const char *ending, char *path, size_t cap, bool make_folder);
/* What is new of pipelines and verdicts, to disk. */
void vk_caches_write(vk_dev *d);
/* Names of the kernels that were switched off when a model was last loaded; `out` is empty when none were. */
void vk_disabled_read(const vk_phys *p, char *out, size_t cap);
void vk_disabled_write(const vk_dev *d);
/* The pipeline of a kernel with these constants (n_spec words, the first is the workgroup's size), which
 * vk_kernels_make is still to compile. */
ob_status vk_kernel_get(vk_dev *d, const char *name, uint32_t n_spec, const uint32_t *spec,
                        const vk_pipe **out, ob_err *err);
/* Compile what was asked for since, on all host threads at once. Before it their handles are not there. */
ob_status vk_kernels_make(vk_dev *d, ob_err *err);
/* Those from number `first` on that are not compiled yet are not wanted after all. */
void vk_kernels_forget(vk_dev *d, size_t first);
/* The variant of a pipeline that may be dispatched in parts. */
ob_status vk_kernel_base(vk_dev *d, const vk_pipe *pipe, VkPipeline *out, ob_err *err);
/* Host threads of the device; NULL: do it yourself. */
ob_pool *vk_pool(vk_dev *d);

/* --- plans ------------------------------------------------------------------------------------ */

typedef struct vk_push {
    VkDeviceAddress a[8];
    uint32_t u[16];
} vk_push;

typedef struct vk_range {
    VkDeviceAddress first, last; /* [first, last) */
} vk_range;

/* Nominal milliseconds of n tokens of which each sees kv cached ones: fixed + n * (tok + kv * kv). */
typedef struct vk_cost {
    double fixed, tok, kv;
} vk_cost;

enum { VK_MAX_RANGES = 8 };
typedef struct vk_dispatch {
    const vk_pipe *pipe;
    const char *kernel; /* as profiles name it */
    vk_push push;
    uint32_t grid[3];
    int32_t indirect; /* index of the plan's indirect sizes, or -1 */
    int32_t op, mat;  /* mat: the first matrix of a linear op, or -1 */
    int32_t n_mats;
    int cut;          /* 1 + the dimension of the grid along which it may be dispatched in parts (its kernel
                         must not use gl_NumWorkGroups of it), 0: none */
    vk_cost cost;
    vk_range reads[VK_MAX_RANGES], writes[VK_MAX_RANGES];
    int n_reads, n_writes;
} vk_dispatch;

/* Which steps an indirect dispatch takes part in; in others its grid is empty. */
typedef enum vk_when {
    VK_ALWAYS,
    VK_SINGLES, /* every sequence has one token */
    VK_SEVERAL  /* some have more */
} vk_when;

/* A grid that each step fills. */
typedef struct vk_indirect {
    vk_when when;
    uint32_t x, y, z;        /* z 0: x is the step's tokens, z the segments of the cache: */
    uint32_t seg;            /* of so many tokens; 0: by attn_one's rule */
    const ob_attn_params *a; /* attn_one's */
} vk_indirect;

enum { VK_MAX_INDIRECT = 16 };

/* Words at the start of the parameters; the shaders' Params. */
typedef struct vk_params {
    uint32_t n_rows[4], coarse[4];
    VkDispatchIndirectCommand split[VK_MAX_INDIRECT];
    uint32_t pad[4];
} vk_params;

/* cos and sin of positions; see shaders/rope.comp. */
typedef struct vk_rope_table {
    const ob_rope_params *p;
    const ob_dev_weight *factors;
    int32_t n_high;
    vk_mem mem;
    VkDeviceAddress high, low;
} vk_rope_table;

/* A part of the list with a command buffer of its own. */
typedef struct vk_segment {
    VkCommandBuffer cmd;
    vk_cost cost;
} vk_segment;
/* Activations as products read them: one of the first three, with flags. Shaders count on the numbers. */
typedef enum vk_form {
    VK_FORM_F32,
    VK_FORM_Q8,
    VK_FORM_F16,
    VK_FORM_KIND = 3,   /* mask of the above */
    VK_FORM_TURNED = 4, /* through the transform of quant/hadamard.h; in f32 too it has a place of its own */
    VK_FORM_COARSE = 8  /* rows that the step marks rounded to 4 bits (quant/act4.h), in int8 as codes in bytes */
} vk_form;

/* A value in another form than f32, as the next product reads it. Two places take turns, so that an op can
 * read one and write the other. */
typedef struct vk_formed {
    ob_val of; /* OB_NONE: nothing */
    vk_form form;
    bool raw;  /* its norm's factors are still to be multiplied to the product (matvec.comp, NORM_IN) */
    float eps; /* of that norm */
} vk_formed;

/* A router's products, in parts behind the int8 form of what it reads (shaders/moe_parts.glsl). */
typedef struct vk_router_parts {
    ob_val of;          /* the logits; OB_NONE: nothing */
    VkDeviceAddress at; /* of the form's scales */
    uint64_t n_bytes;   /* from there to the end of the parts */
    float eps;          /* of the norm */
    uint32_t nu;        /* blocks of 32 columns */
} vk_router_parts;

/* Memory for what a step writes. Steps of a device run one after the other, so all plans may have the same. */
typedef struct vk_work {
    vk_mem mem;
    int32_t n_plans; /* that use it; the last one frees it */
    struct vk_work *next;
} vk_work;

struct ob_dev_plan {
    vk_dev *dev;
    ob_arena arena;
    ob_program prog;
    ob_dev_weight **weights;
    const vk_mem **cache_k, **cache_v; /* [n_caches]; no values: NULL */
    const vk_mem **states;             /* [n_states] */
    ob_type k_type, v_type;
    int32_t page_tok, n_pages, max_ctx, n_slots, max_pages;
    unsigned fast;          /* kernels this plan may use */
    vk_mem work;            /* values, scratch; not its own: of `shared` */
    vk_work *shared;
    vk_mem counts;          /* counters of workgroups that have finished, 0 between steps */
    uint64_t form_off[2];   /* after the values: activations in the form the next product reads */
    uint64_t part_off;      /* after that: partial sums of products and attention */
    uint64_t moe_off;       /* after that: tables and hidden layers of a mixture */
    int32_t chosen_by;      /* the mixture that makes its own choice, or OB_NONE, while the list is made */
    ob_val sorted_of;       /* the ids whose pairs are sorted there, or OB_NONE, while the list is made */
    vk_router_parts parts;  /* what is there, while the list is made */
    vk_formed forms[2];     /* the same */
    int form_last;          /* the newer of the two */
    vk_mem params;
    uint64_t tok_off, pos_off, type_off, first_off, info_off, seq_off, out_off, table_off; /* in params */
    /* The same, where the program asks for them; else 0. Blocks lie behind info, max_tok of each. */
    uint64_t pos_h_off, pos_w_off, vec_off, vec_bytes;
    uint64_t coarse_off[2]; /* words by token and by output, 1: rounded to 4 bits where a weight asks for it */
    bool blocks;
    vk_mem results;       /* outputs small enough to be copied by the plan itself */
    uint64_t *result_off; /* [n_vals]; UINT64_MAX: not there */
    vk_mem inputs;        /* input values, as the host writes them; the plan begins by copying them */
    uint64_t *input_off;  /* [n_vals] */
    vk_dispatch *steps;
    int32_t n_steps, cap_steps;
    vk_indirect indirect[VK_MAX_INDIRECT];
    int32_t n_indirect;
    vk_rope_table *ropes;
    int32_t n_ropes;
    vk_segment *segments; /* [cap_segments]: the list in order, each as long as a submit may be at most */
    int32_t n_segments, n_cmds, cap_segments; /* n_cmds: command buffers there are */
    double scale, cut_scale; /* real over nominal milliseconds: by now, and when the segments were made */
    double nominal_ms, t_submit; /* of the step in flight */
    double last_ms;              /* how long the step before took; 0: none yet */
    int32_t n_measured;
    VkQueryPool times;
    uint64_t in_flight; /* value of its last submit, 0: none */
    int32_t n_tok, n_out, n_seq;
    double n_kv;
};

/* The next dispatch of the list, zeroed; NULL when there is no memory. */
vk_dispatch *vk_add(ob_dev_plan *p, const vk_pipe *pipe, int32_t op);
void vk_reads(vk_dispatch *s, VkDeviceAddress at, uint64_t n);
void vk_writes(vk_dispatch *s, VkDeviceAddress at, uint64_t n);
VkDeviceAddress vk_value(const ob_dev_plan *p, ob_val v);
/* Note that the dispatch reads or writes all of a value; returns its address, 0 for OB_NONE. */
VkDeviceAddress vk_reads_value(const ob_dev_plan *p, vk_dispatch *s, ob_val v);
VkDeviceAddress vk_writes_value(const ob_dev_plan *p, vk_dispatch *s, ob_val v);
uint64_t vk_value_bytes(const ob_dev_plan *p, ob_val v);
int32_t vk_max_rows(const ob_dev_plan *p, ob_rows rows);

ob_status vk_plan_new(ob_dev *d, const ob_program *prog, const ob_plan_bindings *b,
                      ob_dev_plan **out, ob_err *err);
/* The same with kernels limited to `fast`; for tests of kernels. */
ob_status vk_plan_make(vk_dev *d, const ob_program *prog, const ob_plan_bindings *b, unsigned fast,
                       ob_dev_plan **out, ob_err *err);
void vk_plan_free(ob_dev *d, ob_dev_plan *p);
bool vk_supports(const ob_dev *d, const ob_program *p, int32_t op, char *why, size_t cap);

/* The norm at i + 1 of the rows that op i (ROWS_OUT) chooses, in one, if the device can. */
ob_status vk_norm_gather_add(ob_dev_plan *p, int32_t i, bool *added, ob_err *err);

/* Put an address into words i and i + 1. */
void vk_push_addr(vk_push *p, int i, VkDeviceAddress a);

/* vk_linear.c */
const char *vk_type_name(ob_type t); /* as in kernel names; "?" for a type without kernels */
ob_status vk_linear_add(ob_dev_plan *p, int32_t op, ob_err *err);
uint64_t vk_linear_form(const ob_dev_plan *p, const ob_op *op);  /* bytes at form_off */
/* Rows into a form with TURNED, by a pass of its own. half: f16 comes in, else f32. */
typedef struct vk_turn {
    VkDeviceAddress x, to, scales;
    VkDeviceAddress row_of; /* places of a mixture: their rows; 0: per_row of each row */
    uint32_t per_row;
    uint32_t rows, k, n_places; /* rows: which (ob_rows); n_places 0: they are the rows */
    bool half;
    vk_form form;
} vk_turn;
ob_status vk_turn_add(ob_dev_plan *p, int32_t op, const vk_turn *t, vk_dispatch **out, ob_err *err);
/* Input 0 of op i in this form, by a pass of its own unless it is there. */
ob_status vk_form_add(ob_dev_plan *p, int32_t i, vk_form form, ob_err *err);
int32_t vk_linear_rows(const ob_dev_plan *p, const ob_op *op);
/* A dispatch for matrix m with what all products push; see the shaders' Push. The activations' range is not
 * named yet. NULL when there is no memory. */
vk_dispatch *vk_linear_product(ob_dev_plan *p, int32_t op, int m, const vk_pipe *pipe);
/* The form in which matrix m of the op reads its input. */
vk_form vk_matrix_form(const ob_dev_plan *p, const ob_op *op, int m);
/* The same of kind `kind` for a weight, with what a rotated one asks for. */
vk_form vk_weight_form(const ob_dev_plan *p, const ob_dev_weight *w, vk_form kind);
/* Every product of the op reads this form, and only it. */
bool vk_linear_all(const ob_dev_plan *p, const ob_op *op, vk_form form);
/* The form in which the next reader of value v after op i wants it; F32 where that has flags beside `can`. */
vk_form vk_wanted_form(const ob_dev_plan *p, ob_val v, int32_t i, unsigned can);
enum { VK_FORM_ANY = VK_FORM_TURNED | VK_FORM_COARSE }; /* what kernels with form.glsl can */
/* The same for producers that cannot turn: f16 where the reader wants it turned, for a pass of its own makes that of
 * f16. only: nothing else is read of v. */
vk_form vk_plain_form(const ob_dev_plan *p, ob_val v, int32_t i, bool *only);
/* A value's bytes in a form, and its scales behind them. */
uint64_t vk_form_bytes(const ob_dev_plan *p, ob_val v, vk_form form);
/* Whether that reader, op i + 1, is the only one, so that v is not needed in f32. */
bool vk_only_form(const ob_dev_plan *p, ob_val v, int32_t i, vk_form form);
/* Let producer `s` write value v in this form too: two addresses, from `at` in its push constants. */
void vk_write_form(ob_dev_plan *p, vk_dispatch *s, ob_val v, vk_form form, void *at);
/* vk_parts.c: act, affine, gate, split, join */
ob_status vk_parts_add(ob_dev_plan *p, int32_t op, ob_err *err);
/* vk_state.c: convolution over time, delta net, convolved attention */
bool vk_state_supports(const vk_dev *d, const ob_program *p, const ob_op *op, char *why, size_t cap);
ob_status vk_state_add(ob_dev_plan *p, int32_t op, ob_err *err);
uint64_t vk_state_scratch(const ob_dev_plan *p, const ob_op *op); /* bytes at part_off */
/* vk_csa.c: hyper-connections, compressed sparse attention */
bool vk_csa_supports(const vk_dev *d, const ob_op *op, char *why, size_t cap);
ob_status vk_csa_add(ob_dev_plan *p, int32_t op, ob_err *err);
uint64_t vk_csa_scratch(const ob_dev_plan *p, const ob_op *op); /* bytes at part_off */
ob_status vk_hc_mix_add(ob_dev_plan *p, int32_t op, ob_err *err);
ob_status vk_hc_post_add(ob_dev_plan *p, int32_t op, ob_err *err);
/* Where v lies in this form, or NULL; its address and that of its scales. */
const vk_formed *vk_find_form(const ob_dev_plan *p, ob_val v, vk_form form, VkDeviceAddress *at,
                              VkDeviceAddress *scales);
void vk_forget_form(ob_dev_plan *p, ob_val v); /* v was written anew */

/* vk_gemm.c: products of many rows by cooperative matrices */
bool vk_gemm_fits(const ob_dev_plan *p, const ob_op *op, int m);
uint64_t vk_gemm_form(const ob_dev_plan *p, const ob_op *op);     /* bytes of its activations */
uint64_t vk_gemm_parts(const ob_dev_plan *p, const ob_op *op);    /* bytes at part_off */
uint64_t vk_gemm_counters(const ob_dev_plan *p, const ob_op *op); /* bytes of counts */
ob_status vk_gemm_add(ob_dev_plan *p, int32_t op, int m, ob_err *err);
/* Op i of two matrices and the GLU after it. */
bool vk_gemm_fits_glu(const ob_dev_plan *p, int32_t i);
ob_status vk_gemm_add_glu(ob_dev_plan *p, int32_t i, ob_err *err);

/* vk_matvec.c */
enum { VK_MATVEC_ROWS = 8 };
ob_status vk_matvec_add(ob_dev_plan *p, int32_t op, int m, ob_err *err);
/* Op i of two matrices and the GLU after it. */
ob_status vk_matvec_add_glu(ob_dev_plan *p, int32_t i, ob_err *err);
/* Op i with residual, and the norm's weights for op `norm`, whose readers get it raw. router: op that multiplies the
 * norm's result by a router, whose parts are then in p->parts, or OB_NONE. */
ob_status vk_matvec_add_norm(ob_dev_plan *p, int32_t i, int32_t norm, int32_t router, ob_err *err);
bool vk_matvec_int8(const ob_dev_plan *p, const ob_op *op, int m);

/* vk_fuse.c: where op i begins ops that one dispatch can do, adds it and sets how many ops that were; else 0. */
ob_status vk_fuse(ob_dev_plan *p, int32_t i, int32_t *n_ops, ob_err *err);
/* The next op after `from` that reads v as it is then; OB_NONE when none does, or v is written before. */
int32_t vk_next_reader(const ob_dev_plan *p, ob_val v, int32_t from);
/* Different values that share memory, because one is dead when the other is written op by op. */
bool vk_collide(const ob_dev_plan *p, ob_val a, ob_val b);
/* Op i reads v, and what it reads nobody reads after it. */
bool vk_last_reader(const ob_dev_plan *p, ob_val v, int32_t i);

/* vk_sample.c: the best of each row */
bool vk_top_k_supports(const vk_dev *d, char *why, size_t cap);
ob_status vk_top_k_add(ob_dev_plan *p, int32_t op, ob_err *err);
uint64_t vk_top_k_scratch(const ob_dev_plan *p, const ob_op *op); /* bytes at part_off */
/* vk_attn.c */
bool vk_attn_fits(const vk_dev *d, const ob_attn_params *a);
/* Whether a plan for so many tokens takes attn_cm.comp for it. */
bool vk_attn_matrices(const vk_dev *d, const ob_plan_bindings *b, const ob_op *op, int32_t max_tok);
ob_status vk_attn_add(ob_dev_plan *p, int32_t op, ob_err *err);
ob_status vk_rope_add(ob_dev_plan *p, int32_t op, ob_err *err);
/* The plan's table of angles for these parameters (borrowed, kept by the plan); at most one per op is made.
 * factors may be NULL. */
ob_status vk_rope_table_get(ob_dev_plan *p, const ob_rope_params *r, const ob_dev_weight *factors,
                            const vk_rope_table **out, ob_err *err);
ob_status vk_rope_table_of(ob_dev_plan *p, const ob_op *rope, const vk_rope_table **out, ob_err *err);
uint64_t vk_attn_scratch(const ob_dev_plan *p, const ob_op *op);
uint64_t vk_attn_counters(const ob_dev_plan *p, const ob_op *op); /* bytes of counts */
/* Tokens of one segment of a split attention: depends on the context length alone. */
uint32_t vk_attn_segment(int32_t max_ctx);
/* The plan's indirect grid like this one, for dispatch s. */
ob_status vk_attn_grid(ob_dev_plan *p, vk_dispatch *s, const vk_indirect *like, ob_err *err);

/* What stands between a layer's products and the end of its attention: ops [first, attn): [norm q, norm k,]
 * rope q, rope k, attention. */
typedef struct vk_heads {
    const ob_op *norm[2], *rope[2], *attn;
    ob_val in[2]; /* queries and keys as they come from their products */
    int32_t n_ops;
} vk_heads;
/* Where op i begins such, and one kernel can do all before the attention: adds these *n_ops ops. Else *n_ops is 0. */
ob_status vk_heads_add(ob_dev_plan *p, int32_t i, int32_t *n_ops, ob_err *err);

/* vk_attn_one.c: attention of few tokens by subgroups */
bool vk_attn_one_fits(const ob_dev_plan *p, const ob_op *op);
/* Op i; h: with all before it, or NULL. */
ob_status vk_attn_one_add(ob_dev_plan *p, int32_t i, const vk_heads *h, vk_when when, ob_err *err);
uint64_t vk_attn_one_scratch(const ob_dev_plan *p, const ob_op *op);
uint64_t vk_attn_one_counters(const ob_dev_plan *p, const ob_op *op);
/* Numbers found on the one card at hand, or those of OB_VK_ATTN=HB,AHEAD,SEG_MIN,MAX_SEG,SUBGROUPS. */
vk_attn_tuning vk_attn_tuning_get(void);
/* Segments of what a token at place `at` of its sequence sees. */
uint32_t vk_attn_one_segments(const vk_dev *d, const ob_attn_params *a, uint32_t at);

/* vk_time.c */
ob_status vk_time_init(vk_dev *d, ob_err *err);
void vk_time_dispatches(ob_dev_plan *p);
double vk_time_nominal(const vk_cost *c, double n_tok, double n_kv);
double vk_time_worst(const ob_dev_plan *p, const vk_cost *c); /* real ms of the largest step */
void vk_time_measured(ob_dev_plan *p, double ms);

/* vk_fault.c */
void vk_fault_init(vk_dev *d);
ob_status vk_fault(vk_dev *d, ob_err *err); /* at the beginning of each step of a model */

/* vk_heads.c */
ob_status vk_linear_heads_add(ob_dev_plan *p, int32_t op, ob_err *err);
/* vk_record.c: the list into segments; may be called again, when nothing of the plan is in flight and its
 * scale has changed. */
/* vk_moe.c */
bool vk_route_fits(const ob_program *p, const ob_op *op, const char **why);
bool vk_moe_fits(const ob_program *p, const ob_op *op, const char **why);
ob_status vk_route_add(ob_dev_plan *p, int32_t op, ob_err *err);
/* Where op i begins [norm,] router, choice, and one kernel can do them: adds these *n_ops ops. Else *n_ops is 0. */
ob_status vk_router_add(ob_dev_plan *p, int32_t i, int32_t *n_ops, ob_err *err);
uint64_t vk_route_counters(const ob_dev_plan *p);               /* bytes of counts */
uint64_t vk_route_form(const ob_dev_plan *p, int32_t op);       /* bytes of the form with the router's parts */
/* Ops n .. n + 3 are a norm, the router, the choice and the experts, and what writes the norm's input may leave the
 * router's parts for the others. */
bool vk_router_fits_parts(const ob_dev_plan *p, int32_t n);
/* norm: op whose input is this one's result, and which need not be added then; or OB_NONE. Its readers get it raw. */
ob_status vk_moe_add(ob_dev_plan *p, int32_t op, int32_t norm, ob_err *err);
bool vk_moe_gives_norm(const ob_dev_plan *p, const ob_op *op);
vk_form vk_moe_form(const ob_dev_plan *p, const ob_op *op);      /* in which it reads its input */
uint64_t vk_moe_scratch(const ob_dev_plan *p, const ob_op *op); /* bytes at moe_off */

/* vk_record.c */
ob_status vk_record(ob_dev_plan *p, ob_err *err);

/* vk_run.c */
ob_status vk_submit(ob_dev *d, ob_dev_plan *p, const ob_step *step, ob_fence *out, ob_err *err);
ob_status vk_wait(ob_dev *d, ob_fence f, ob_err *err);
ob_status vk_write_input(ob_dev *d, ob_dev_plan *p, ob_val v, const float *src, int32_t n_rows, ob_err *err);
ob_status vk_read_output(ob_dev *d, ob_dev_plan *p, ob_val v, int32_t row, int32_t n_rows,
                         float *dst, ob_err *err);
int vk_profile_read(ob_dev *d, ob_profile_row *rows, int cap, bool reset);

/* vk_selftest.c: is op i right on this device? Tested when it is first asked for; wrong kernels are switched off. */
bool vk_selftest(vk_dev *d, const ob_program *p, int32_t i);
bool vk_kernel_off(const vk_dev *d, const char *name); /* switched off by a test */
void vk_switch_off(vk_dev *d, const char *name, double error);
bool vk_test_fails(const char *name); /* by injection */
bool vk_test_fails_type(ob_type t);   /* a kernel for weights of this type does */
bool vk_tests_wanted(void);           /* not with OB_VK_SELFTEST=0 */
/* Around every test: tests within tests count once, and leave no rows in a profile. */
typedef struct vk_testing {
    bool inside; /* another test */
    double t0;
} vk_testing;
vk_testing vk_testing_begin(vk_dev *d);
void vk_testing_end(vk_dev *d, vk_testing was);

/* vk_verdict.c: tests that were passed, now or in an earlier process. Any thread. */
#define OB_VK_HASH_START UINT64_C(14695981039346656037)
uint64_t vk_hash(uint64_t h, const void *data, size_t n);
/* The beginning of a key: the test's name, and what the device runs with. */
uint64_t vk_verdict_key(const vk_dev *d, const char *test);
bool vk_verdict_find(const vk_dev *d, uint64_t key, uint32_t *value);
void vk_verdict_add(const vk_dev *d, uint64_t key, uint32_t value);
void vk_verdict_write(const vk_dev *d);

/* vk_test.c: tests the fast kernels for weights of this type, once per device and type; switches
 * off those that are wrong. Errors only when the test could not run. */
ob_status vk_test_type(vk_dev *d, ob_type t, ob_err *err);
/* The same for rotated weights, after that of Q4_0. */
ob_status vk_test_rotated(vk_dev *d, ob_err *err);
/* vk_test_attn.c: the same for attention by matrices, once per shape. */
ob_status vk_test_attn(vk_dev *d, const ob_program *prog, const ob_plan_bindings *b, ob_err *err);
/* vk_test_moe.c: the same for mixtures of experts, after vk_test_type. */
ob_status vk_test_experts(vk_dev *d, ob_type t, ob_err *err);

static inline vk_dev *vk_of(ob_dev *d)
{
    return (vk_dev *)d;
}

#endif
