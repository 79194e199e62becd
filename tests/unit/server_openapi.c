/* SPDX-License-Identifier: Apache-2.0
 *
 * openapi.json against the code: it has every route with its methods and no other, and every request schema has exactly the
 * fields the parsers read. */
#include <cjson/cJSON.h>
#include <stdlib.h>

#include "server/transport.h"
#include "server/translate.h"
#include "tests/unit/test.h"

extern const char server__openapi[], server__openapi_end[];

static cJSON *document(void) {
    cJSON *root = cJSON_ParseWithLength(server__openapi, (size_t)(server__openapi_end - server__openapi));
    if (!root) {
        printf("FAIL document: openapi.json is no JSON\n");
        exit(1);
    }
    return root;
}

static const cJSON *at(const cJSON *v, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(v, name);
}

TEST(routes) {
    cJSON *root = document();
    const cJSON *paths = at(root, "paths"), *item;
    bool get, post, below;
    const char *path;
    int n = 0;

    for (int i = 0; (path = route__describe(i, &get, &post, &below)) != NULL; i++, n++) {
        item = at(paths, path);
        CHECKF(item != NULL, "%s is not in the document", path);
        CHECKF((at(item, "get") != NULL) == get && (at(item, "post") != NULL) == post, "methods of %s", path);
        if (!below) continue;
        char more[128];
        snprintf(more, sizeof more, "%s/{id}", path);
        CHECKF(at(at(paths, more), "get") != NULL, "%s is not in the document", more);
        n++;
    }
    CHECKF(cJSON_GetArraySize(paths) == n, "the document has %d paths, the server %d", cJSON_GetArraySize(paths), n);
    cJSON_Delete(root);
}

static const cJSON *properties(const cJSON *root, const char *schema) {
    return at(at(at(at(root, "components"), "schemas"), schema), "properties");
}

TEST(fields_of_the_table) {
    static const struct { const char *schema; unsigned endpoint; } rows[] = {{"CompletionRequest", PARSE_COMPLETION}, {"ChatRequest", PARSE_CHAT}, {"EmbeddingRequest", PARSE_EMBEDDING}};
    cJSON *root = document();
    unsigned endpoints;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const cJSON *p = properties(root, rows[i].schema);
        int n = 0;
        for (int k = 0; k < N_FIELDS; k++) {
            const char *name = parse__field_name((enum field)k, &endpoints);
            if (!(endpoints & rows[i].endpoint)) continue;
            CHECKF(at(p, name) != NULL, "%s lacks %s", rows[i].schema, name);
            n++;
        }
        CHECKF(cJSON_GetArraySize(p) == n, "%s has %d fields, the parser %d", rows[i].schema, cJSON_GetArraySize(p), n);
    }
    const cJSON *to = properties(root, "TokenizeRequest"), *back = properties(root, "DetokenizeRequest");
    int n = 0;
    for (int k = 0; k < N_FIELDS; k++) {
        const char *name = parse__field_name((enum field)k, &endpoints);
        if (!(endpoints & PARSE_TEXT)) continue;
        CHECKF(at(to, name) != NULL || at(back, name) != NULL, "%s is in neither", name);
        n++;
    }
    CHECK(cJSON_GetArraySize(to) + cJSON_GetArraySize(back) == n);
    cJSON_Delete(root);
}

TEST(fields_of_the_translators) {
    static const struct { const char *schema; const char *const *fields; } rows[] = {
        {"MessagesRequest", parse_messages_fields}, {"CountTokensRequest", parse_messages_fields}, {"ResponsesRequest", parse_responses_fields}};
    cJSON *root = document();

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const cJSON *p = properties(root, rows[i].schema);
        int n = TRANSLATE_N_PASSED;
        for (int k = 0; k < TRANSLATE_N_PASSED; k++) CHECKF(at(p, translate_passed[k]) != NULL, "%s lacks %s", rows[i].schema, translate_passed[k]);
        for (int k = 0; rows[i].fields[k]; k++, n++) CHECKF(at(p, rows[i].fields[k]) != NULL, "%s lacks %s", rows[i].schema, rows[i].fields[k]);
        CHECKF(cJSON_GetArraySize(p) == n, "%s has %d fields, the parser %d", rows[i].schema, cJSON_GetArraySize(p), n);
    }
    cJSON_Delete(root);
}

/* Every $ref leads somewhere. */
static bool refs_lead(const cJSON *root, const cJSON *v) {
    const cJSON *item;
    static const char prefix[] = "#/components/schemas/";

    if (cJSON_IsString(v) && v->string && strcmp(v->string, "$ref") == 0)
        return strncmp(v->valuestring, prefix, sizeof prefix - 1) == 0 && at(at(at(root, "components"), "schemas"), v->valuestring + sizeof prefix - 1) != NULL;
    cJSON_ArrayForEach(item, v) {
        if (!refs_lead(root, item)) return false;
    }
    return true;
}

TEST(references) {
    cJSON *root = document();
    CHECK(refs_lead(root, root));
    cJSON_Delete(root);
}

int main(void) {
    RUN(routes);
    RUN(fields_of_the_table);
    RUN(fields_of_the_translators);
    RUN(references);
    return test_failed_;
}
