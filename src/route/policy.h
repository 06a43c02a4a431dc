/* route/policy.h: which target serves which kind of request, and how long that takes.
 *
 * Owns: the policy file (keys of the original: min_confidence, default, classes; and `measured`), the choice of a
 * target, predictions. A target is a device and, where it is not the served one, a model file. Must not know
 * engines that run, HTTP or files other than the policy's.
 *
 * A policy is *immutable after load*.
 */
#ifndef OB_ROUTE_POLICY_H
#define OB_ROUTE_POLICY_H

#include "base/buf.h"
#include "route/scorer.h"

enum { OB_MAX_TARGETS = 8, OB_MAX_LENGTHS = 16, OB_TARGET_NAME = 64 };

/* Written "DEVICE" or "DEVICE@MODEL"; "" or "auto" as the device: that of --device. */
typedef struct ob_target_name {
    char text[OB_TARGET_NAME * 5];
} ob_target_name;

/* What a target took on this machine for prompts of one length. */
typedef struct ob_measure {
    int32_t n_prompt;
    double ttft_ms;         /* median: submit to first token */
    double token_ms;        /* median: each further token, alone */
    double busy_token_ms;   /* the same with `busy` requests at once */
    double spread;          /* largest relative distance from the medians */
} ob_measure;

typedef struct ob_measured_target {
    char name[OB_TARGET_NAME * 5];
    ob_measure at[OB_MAX_LENGTHS]; /* [n], ascending by n_prompt */
    int32_t n;
} ob_measured_target;

typedef struct ob_measured {
    ob_measured_target targets[OB_MAX_TARGETS]; /* [n_targets]; 0: nothing was measured */
    int32_t n_targets, busy;
    int32_t out_tok[OB_CLASS_COUNT]; /* length of a reply of each class */
    double decision_ms, decision_spread;
    double margin;                   /* gain, as a share, that a pick needs over the one before it in order */
    char machine[160], when[32], model[160];
} ob_measured;

typedef struct ob_policy {
    double min_confidence;
    char fallback[OB_TARGET_NAME * 5];                      /* "default" */
    char target[OB_CLASS_COUNT][OB_TARGET_NAME * 5];
    char why[OB_CLASS_COUNT][256];
    ob_measured measured;
} ob_policy;

/* Everything on the device of --device. */
void ob_policy_default(ob_policy *p);
/* Errors name the file and the key: NOT_FOUND, IO, INVALID (no JSON, an unknown class, a class that is missing or has
 * no device, a number out of range). A min_confidence above 1 is allowed: then every conversation goes to the default. */
OB_MUST_CHECK ob_status ob_policy_load(const char *path, ob_policy *p, ob_err *err);
OB_MUST_CHECK ob_status ob_policy_parse(const char *text, size_t len, const char *what, ob_policy *p, ob_err *err);
/* As a file. */
void ob_policy_write(const ob_policy *p, ob_buf *out);
/* For people. */
void ob_policy_show(const ob_policy *p, ob_buf *out);

/* Milliseconds until a reply of class c to n_prompt tokens is complete on a target that has `ahead` requests before it
 * and works on n_seq at once; NAN when that target was not measured. *ttft (may be NULL): until its first token. */
double ob_policy_predict(const ob_policy *p, const char *target, ob_class c, int32_t n_prompt, int32_t ahead,
                         int32_t n_seq, double *ttft);

/* A target that could serve now. */
typedef struct ob_candidate {
    const char *name;
    int32_t n_ahead, n_seq; /* requests on it; how many it works on at once */
} ob_candidate;

typedef struct ob_pick {
    int32_t target;      /* of the candidates */
    const char *reason;  /* static */
    double predicted_ms; /* NAN: not measured */
} ob_pick;

/* At least one candidate, the default first. The class's target, if confidence reaches the floor and the target is a
 * candidate; where times were measured the fastest for that class, length and queue, if it beats the class's target
 * by the margin; else the default. */
ob_pick ob_policy_pick(const ob_policy *p, ob_class c, double confidence, int32_t n_prompt, const ob_candidate *cand,
                       int32_t n);

/* From measured times: fills target and why of every class for the lengths that its requests have. `order`: targets
 * from the one that wins ties. */
void ob_policy_decide(ob_policy *p);
/* The pick for one class and length, index into measured.targets. */
int32_t ob_policy_cell(const ob_policy *p, ob_class c, int32_t n_prompt);

#endif
