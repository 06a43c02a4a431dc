/* fake_server MODEL [NAME=VALUE...]: the server over the fake engine, for tests. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serve/serve.h"

int main(int argc, char **argv)
{
    ob_serve_params p;
    const char *keys[4];
    ob_serve_defaults(&p);
    p.port = 0;
    if (argc < 2) return 2;
    p.engine.model_path = argv[1];
    for (int i = 2; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (!value) return 2;
        *value++ = 0;
        if (!strcmp(argv[i], "port")) p.port = atoi(value);
        else if (!strcmp(argv[i], "timeout")) p.timeout_s = atof(value);
        else if (!strcmp(argv[i], "ctx")) p.engine.n_ctx = atoi(value);
        else if (!strcmp(argv[i], "connections")) p.max_connections = atoi(value);
        else if (!strcmp(argv[i], "host")) p.host = value;
        else if (!strcmp(argv[i], "alias")) p.alias = value;
        else if (!strcmp(argv[i], "cors")) p.cors_origin = value;
        else if (!strcmp(argv[i], "long")) p.long_path = value;
        else if (!strcmp(argv[i], "long_from")) p.long_from = atoi(value);
        else if (!strcmp(argv[i], "long_device")) p.long_device = value;
        else if (!strcmp(argv[i], "policy")) p.route_policy = value, p.route = true;
        else if (!strcmp(argv[i], "scorer")) p.route_scorer = value, p.route = true;
        else if (!strcmp(argv[i], "grace")) p.stop_grace_s = atof(value);
        else if (!strcmp(argv[i], "key") && p.n_api_keys < 4) {
            keys[p.n_api_keys++] = value;
            p.api_keys = keys;
        } else return 2;
    }
    ob_server *s;
    ob_err err;
    if (ob_server_new(&p, &s, &err) != OB_OK) {
        fprintf(stderr, "fake_server: %s\n", err.text);
        return 1;
    }
    ob_status rc = ob_server_run(s, &err);
    if (rc != OB_OK) fprintf(stderr, "fake_server: %s\n", err.text);
    if (rc == OB_E_CANCELLED) _exit(0);
    ob_server_free(s);
    return rc == OB_OK ? 0 : 1;
}
