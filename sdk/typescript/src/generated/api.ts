// Generated from openapi/openapi.json by scripts/generate.mjs. Do not edit.

export interface paths {
    "/v1/limits": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** What this key may use, and how much of it is in use. */
        get: {
            parameters: {
                query?: never;
                header?: never;
                path?: never;
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Limits"];
                    };
                };
                401: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/me": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Who this key is. */
        get: {
            parameters: {
                query?: never;
                header?: never;
                path?: never;
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Me"];
                    };
                };
                401: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Sandboxes, oldest first: those that live and those that can start again. */
        get: {
            parameters: {
                query?: {
                    /** @description Any of these states; repeat it for more than one. */
                    state?: string[];
                    name?: string;
                    /** @description `key:value`; repeated ones must all match. */
                    label?: string[];
                    /** @description Also stopped ones whose disk is gone. */
                    includeStopped?: boolean;
                    /** @description 1 to 100; default 50. */
                    limit?: number;
                    cursor?: string;
                };
                header?: never;
                path?: never;
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["SandboxPage"];
                    };
                };
                400: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        put?: never;
        /**
         * Make a sandbox, or with `getOrCreate` find the one of that name.
         * @description `Prefer: wait=N` waits until it runs.
         */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path?: never;
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["CreateSandbox"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Sandbox"];
                    };
                };
                400: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                409: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** One sandbox; with `waitFor`, once it is in that state, or when the time is over. */
        get: {
            parameters: {
                query?: {
                    /** @description `running`, `paused` or `stopped`. */
                    waitFor?: string;
                    /** @description Default 60, at most 120. */
                    timeoutSeconds?: number;
                };
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Sandbox"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        put?: never;
        post?: never;
        /** Remove it with its disk. Repeatable: the answer stays the same. */
        delete: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["DeletedSandbox"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/files/archive": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Read a folder as tar, or as a gzip of it. */
        get: {
            parameters: {
                query: {
                    /** @description A directory */
                    path: string;
                    /** @description Compressed */
                    gzip?: boolean;
                    /** @description sandbox or root */
                    user?: string;
                    /** @description Relative paths that are left out with all below */
                    exclude?: string[];
                };
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                /** @description The archive */
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/octet-stream": unknown;
                    };
                };
            };
        };
        /** Unpack a small tar, or gzip of one, into a folder, which is made if it is missing. */
        put: {
            parameters: {
                query: {
                    /** @description A directory */
                    path: string;
                    /** @description sandbox or root */
                    user?: string;
                };
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                };
                cookie?: never;
            };
            /** @description At most 1,048,576 bytes */
            requestBody: {
                content: {
                    "application/octet-stream": string;
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Empty"];
                    };
                };
            };
        };
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/files/archive/uploads": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Begin an archive that comes in parts, in order. It is unpacked as it comes; one that nobody sends to for ten minutes
         *     is given up.
         */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["ArchiveRequest"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["UploadStarted"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/files/archive/uploads/{upload}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        /** Send the next part; one that was taken already is skipped. */
        put: {
            parameters: {
                query: {
                    /** @description How many bytes came before it */
                    offset: number;
                };
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                    /** @description An upload */
                    upload: string;
                };
                cookie?: never;
            };
            /** @description At most 1,048,576 bytes */
            requestBody: {
                content: {
                    "application/octet-stream": string;
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["UploadProgress"];
                    };
                };
            };
        };
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/files/archive/uploads/{upload}:abort": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Give the archive up; what was unpacked of it stays. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                    /** @description An upload */
                    upload: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Empty"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/files/archive/uploads/{upload}:commit": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** All parts are sent: answers once everything is unpacked. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                    /** @description An upload */
                    upload: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Empty"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/files/content": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Read a file. */
        get: {
            parameters: {
                query: {
                    /** @description A file */
                    path: string;
                };
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                /** @description The bytes */
                200: {
                    headers: {
                        /** @description The size of the file */
                        "x-content-length"?: number;
                        /** @description Of files up to 1 MiB */
                        "x-content-sha256"?: string;
                        [name: string]: unknown;
                    };
                    content: {
                        "application/octet-stream": unknown;
                    };
                };
            };
        };
        /** Write a whole file under its name at once; it is on the disk before the answer. */
        put: {
            parameters: {
                query: {
                    /** @description Its parents are made under /workspace */
                    path: string;
                    /** @description Three octal digits; 644 if left out */
                    mode?: string;
                };
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                };
                cookie?: never;
            };
            /** @description At most 1,048,576 bytes */
            requestBody: {
                content: {
                    "application/octet-stream": string;
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["FileWritten"];
                    };
                };
            };
        };
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/files/list": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** List a directory, links not followed, sorted by path. */
        get: {
            parameters: {
                query: {
                    /** @description A directory */
                    path: string;
                    /** @description Levels below it; 1 if left out, all with a glob */
                    depth?: number;
                    /** @description Matched against the path relative to the directory */
                    glob?: string;
                    /** @description Names that begin with a dot too */
                    hidden?: boolean;
                    /** @description Most entries, up to 10,000 */
                    limit?: number;
                };
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["FileListing"];
                    };
                };
            };
        };
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/files/stat": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** What is at a path; nothing there is an answer, not an error. */
        get: {
            parameters: {
                query: {
                    /** @description Absolute */
                    path: string;
                };
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["FileStat"];
                    };
                };
            };
        };
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/files/watches": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Watches that go on. */
        get: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["WatchList"];
                    };
                };
            };
        };
        put?: never;
        /** Watch the files below a path. What changes after the answer is seen. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["WatchRequest"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["WatchInfo"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/files/watches/{watch}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        post?: never;
        /** Stop a watch. What it saw can be read for a while. */
        delete: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                    /** @description A watch */
                    watch: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["WatchStopped"];
                    };
                };
            };
        };
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/files/watches/{watch}/events": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** What a watch saw from a cursor on: what there is (`waitMs` to wait for more), or with `follow` all that comes. */
        get: {
            parameters: {
                query?: {
                    /** @description Where to begin; 0, all that is held, if left out */
                    cursor?: number;
                    /** @description How long a poll waits for something, at most 8000 */
                    waitMs?: number;
                    /** @description Answer a line for each thing until the watch ends */
                    follow?: boolean;
                };
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                    /** @description A watch */
                    watch: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["WatchPoll"];
                        "application/x-ndjson": components["schemas"]["WatchLine"];
                    };
                };
            };
        };
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/files:chmod": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Change the mode of a file. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["ChmodRequest"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Empty"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/files:mkdir": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Make a directory. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["MakeDirRequest"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Empty"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/files:remove": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Remove a file, a link, or a directory. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["RemoveRequest"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["RemoveAnswer"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/files:rename": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Give a file another name. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["RenameRequest"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Empty"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/network": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The rules of a sandbox, and whether they are in force. */
        get: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["SandboxNetwork"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        /** Replace the rules. What is left out is emptied. Answered once they hold, for open connections too. */
        put: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["NetworkRules"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["SandboxNetwork"];
                    };
                };
                400: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/network/decisions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** What was decided about its connections, newest first. The last thousand are kept, until the server stops. */
        get: {
            parameters: {
                query?: {
                    /** @description 1 to 200; default 50. */
                    limit?: number;
                    cursor?: string;
                };
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["NetworkDecisionPage"];
                    };
                };
                400: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/previews": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The previews of a sandbox, by port; each private one with a token that lasts a day. */
        get: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["PreviewList"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        put?: never;
        /** Put a port of the sandbox under an address of its own, or change who may see the one that is there. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["CreatePreview"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Preview"];
                    };
                };
                400: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/previews/{port}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** One preview; a private one with a token that lasts as asked. */
        get: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                    port: number;
                    /** @description 60 to 604800, a day if absent. */
                    ttlSeconds: number | null;
                    /** @description 60 seconds to 7 days ahead. */
                    expiresAt: string | null;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Preview"];
                    };
                };
                400: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        put?: never;
        post?: never;
        /** Take the port's address away, and cut what is open there. */
        delete: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                    port: number;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["DeletedPreview"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/previews/{port}:rotate": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** End every token of a preview, and what is open by them; the answer has a new one. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                    port: number;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Preview"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/processes": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** What runs, and the last 16 that ended; commands of `:exec` too. */
        get: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ProcessList"];
                    };
                };
            };
        };
        put?: never;
        /** Start a process and answer at once; it lives until it ends, is signalled, or the sandbox stops. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["ProcessRequest"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ProcessInfo"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/processes/{process}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** One process. */
        get: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                    /** @description A process */
                    process: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ProcessInfo"];
                    };
                };
            };
        };
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/processes/{process}/files": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** The files that a process opened, if it was started with `traceFiles` and has ended. */
        get: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                    /** @description A process */
                    process: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["TracedFiles"];
                    };
                };
            };
        };
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/processes/{process}/output": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Output from a cursor: what there is (`waitMs` to wait for more), or with `follow` all that comes. */
        get: {
            parameters: {
                query?: {
                    /** @description The first byte wanted; 0 if left out */
                    cursor?: number;
                    /** @description How long a poll waits for output, at most 8000 */
                    waitMs?: number;
                    /** @description Answer a line per event until the process ends */
                    follow?: boolean;
                };
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                    /** @description A process */
                    process: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["OutputPoll"];
                        "application/x-ndjson": components["schemas"]["ExecEvent"];
                    };
                };
            };
        };
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/processes/{process}:resize": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Give the terminal of a process another size. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                    /** @description A process */
                    process: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["PtySize"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Empty"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/processes/{process}:signal": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Send a signal to a process and all that it started; one that has ended takes none, and that is fine. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                    /** @description A process */
                    process: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["SignalRequest"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Empty"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/processes/{process}:write": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Give a process input at an offset; what it has already is skipped. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                    /** @description A process */
                    process: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["InputRequest"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["InputAnswer"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/sessions": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Sessions that live, and those that ended within a day, newest first; without their tokens. */
        get: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["SessionList"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        put?: never;
        /** Make a session: what a web page needs to use this sandbox without a key. The token is in this answer only. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["CreateSession"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["NewSession"];
                    };
                };
                400: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                429: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/sessions/{session}:revoke": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** End a session now, and what it has open. Repeatable. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                    session: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Session"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/terminal": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Open a terminal, or show one that is open. A WebSocket: text `{"type":"ready","processId"}` first, then output as
         *     binary frames, `{"type":"exit","exitCode"}` at the end. Typed bytes go as binary frames, a new size as
         *     `{"type":"resize","cols","rows"}`.
         */
        get: {
            parameters: {
                query?: {
                    /** @description 80 if left out */
                    cols?: number;
                    /** @description 24 if left out */
                    rows?: number;
                    /** @description A shell line; `bash -l` if left out */
                    command?: string;
                    /** @description Absolute */
                    cwd?: string;
                    /** @description sandbox or root */
                    user?: string;
                    /** @description A process with a terminal, to show it; 80 by 24 leaves the size it has */
                    processId?: string;
                };
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                /** @description The connection is a WebSocket */
                101: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content?: never;
                };
            };
        };
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/tunnel": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /**
         * Open a tunnel: a WebSocket that carries connections to ports of the sandbox's own loopback, and logins over SSH. Text
         *     `{"type":"ready"}` first, then binary frames.
         */
        get: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                /** @description The connection is a WebSocket */
                101: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content?: never;
                };
            };
        };
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/uploads": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Begin a file that comes in chunks. Until it is committed it lies in the sandbox beside its target and counts against
         *     the disk; one that nobody sends to for a day is gone.
         */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["UploadRequest"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["UploadStarted"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/uploads/{upload}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        /** Send a chunk; it may be sent again. What is acknowledged survives the server. */
        put: {
            parameters: {
                query: {
                    /** @description A multiple of chunkBytes */
                    offset: number;
                };
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                    /** @description An upload */
                    upload: string;
                };
                cookie?: never;
            };
            /** @description One chunk */
            requestBody: {
                content: {
                    "application/octet-stream": string;
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["UploadProgress"];
                    };
                };
            };
        };
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/uploads/{upload}:abort": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Give the upload up; nothing of it is left. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                    /** @description An upload */
                    upload: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Empty"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}/uploads/{upload}:commit": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Give the file its name, once all of it is there and its digest is right. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                    /** @description An upload */
                    upload: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["FileWritten"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}:exec": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Run one command and answer its end, or its output as it comes. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    /** @description A sandbox */
                    id: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["ExecRequest"];
                };
            };
            responses: {
                /** @description How it ended; with `stream` a line per event instead */
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ExecAnswer"];
                        "application/x-ndjson": components["schemas"]["ExecEvent"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}:extend": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Move the end of the time limit. Without a limit there is nothing to move. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["ExtendSandbox"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Sandbox"];
                    };
                };
                400: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                409: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}:fork": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Make copies of a sandbox that go on where it stands, memory and processes included. It stands still meanwhile.
         * @description `Prefer: wait=N` waits until they run.
         */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["ForkSandbox"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Forked"];
                    };
                };
                400: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                409: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}:pause": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Have it stand still with its memory. Answered as soon as it does. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Sandbox"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                409: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}:resize": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Give a sandbox another size. What is left out stays; a disk only grows. `restart` says that its memory may go: it
         *     stops, keeps its disk, and starts again.
         */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["ResizeSandbox"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Sandbox"];
                    };
                };
                400: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                409: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}:restart": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Start a stopped sandbox on the disk it had. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Sandbox"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                409: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}:retention": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** How many days a stopped or paused sandbox is kept; null for good. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["SandboxRetention"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Sandbox"];
                    };
                };
                400: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}:snapshot": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /**
         * Keep what a sandbox is. One that runs stands still meanwhile and goes on; one that is paused stays so.
         * @description `Prefer: wait=N` waits until it is taken.
         */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["TakeSnapshot"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Snapshot"];
                    };
                };
                400: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                409: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}:stop": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** End the machine, keep the disk. Fine on one that is stopped. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Sandbox"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}:update": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Change settings. What is left out stays. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["UpdateSandbox"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Sandbox"];
                    };
                };
                400: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                409: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/sandboxes/{id}:wake": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Have a paused sandbox go on where it stood. One with a time limit gets it anew. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["WakeSandbox"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Sandbox"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                409: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/snapshots": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** Snapshots, oldest first. */
        get: {
            parameters: {
                query?: {
                    sandboxId?: string;
                    name?: string;
                    state?: string;
                    /** @description 1 to 100; default 50. */
                    limit?: number;
                    cursor?: string;
                };
                header?: never;
                path?: never;
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["SnapshotPage"];
                    };
                };
                400: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        put?: never;
        post?: never;
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/snapshots/{id}": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        /** One snapshot. */
        get: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Snapshot"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        put?: never;
        post?: never;
        /** The same as `:delete`. */
        delete: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Snapshot"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/snapshots/{id}:delete": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Remove it. Sandboxes that were made from it stay. Repeatable. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody?: never;
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Snapshot"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/snapshots/{id}:extend": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Keep it for so many days from now, at most a year from when it was taken. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["ExtendSnapshot"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Snapshot"];
                    };
                };
                400: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
    "/v1/snapshots/{id}:update": {
        parameters: {
            query?: never;
            header?: never;
            path?: never;
            cookie?: never;
        };
        get?: never;
        put?: never;
        /** Change its name or labels. What is left out stays. */
        post: {
            parameters: {
                query?: never;
                header?: never;
                path: {
                    id: string;
                };
                cookie?: never;
            };
            requestBody: {
                content: {
                    "application/json": components["schemas"]["UpdateSnapshot"];
                };
            };
            responses: {
                200: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["Snapshot"];
                    };
                };
                404: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
                409: {
                    headers: {
                        [name: string]: unknown;
                    };
                    content: {
                        "application/json": components["schemas"]["ErrorBody"];
                    };
                };
            };
        };
        delete?: never;
        options?: never;
        head?: never;
        patch?: never;
        trace?: never;
    };
}
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        /** @description One row: how much of what is in use. */
        AccountLimit: {
            label: string;
            /** @description `<kind>.<dimension>`. */
            limit: string;
            /**
             * Format: int64
             * @description Null: as much as the host has.
             */
            max?: number | null;
            /** @description `count` or `mib`. */
            unit: string;
            /** Format: int64 */
            used: number;
        };
        /** @description An archive that comes in parts, to be unpacked into a folder. */
        ArchiveRequest: {
            /**
             * @description Said for people: what it is shows in its first bytes.
             * @default null
             */
            gzip?: boolean | null;
            /** @default  */
            path?: string;
            /**
             * @description `sandbox` or `root`.
             * @default null
             */
            user?: string | null;
        };
        /** @enum {string} */
        ChangeType: "create" | "write" | "remove" | "rename" | "chmod" | "access";
        ChmodRequest: {
            /**
             * @description Octal digits, like `755`.
             * @default
             */
            mode?: string;
            /** @default  */
            path?: string;
        };
        /**
         * @description Who a command runs as.
         * @enum {string}
         */
        CommandUser: "sandbox" | "root";
        CreatePreview: {
            /**
             * @description At most 16: `https://host[:port]`, `https://*.host`, `http://localhost[:port]`. Left out, those of before stay; null or
             *     empty: any.
             */
            embedOrigins?: string[] | null;
            /** @description When it ends at the latest: 60 seconds to 7 days ahead. */
            expiresAt?: string | null;
            /**
             * Format: int32
             * @description 1 to 65535, but 10800, 10802 and 10853.
             */
            port: number;
            /**
             * Format: int32
             * @description How long the token of the answer lasts at least: 60 to 604800, a day if absent.
             */
            ttlSeconds?: number | null;
            /** @description `private` (the default) or `public`. */
            visibility?: string | null;
        };
        /** @description Every field may be left out. */
        CreateSandbox: {
            /** @default null */
            autoWake?: boolean | null;
            /**
             * @description `shared` or `reserved`.
             * @default null
             */
            cpu?: string | null;
            /**
             * Format: int32
             * @default null
             */
            cpuFloorMillis?: number | null;
            /**
             * Format: int64
             * @description 3072 to 409600; default 4096.
             * @default null
             */
            diskMiB?: number | null;
            /**
             * @description Never answered again.
             * @default null
             */
            env?: {
                [key: string]: string;
            } | null;
            /**
             * @description Accepted, not used.
             * @default null
             */
            funding?: string | null;
            /**
             * @description Find the sandbox of this name, start it if need be, or make it.
             * @default null
             */
            getOrCreate?: boolean | null;
            /**
             * Format: int32
             * @description 0 = never; 1 to 59 are raised to 60; default 300.
             * @default null
             */
            idlePauseSeconds?: number | null;
            /** @default null */
            image?: string | null;
            /** @default null */
            labels?: {
                [key: string]: string;
            } | null;
            /**
             * Format: int64
             * @description Deprecated, not used.
             * @default null
             */
            maxCostMicros?: number | null;
            /**
             * Format: int64
             * @default null
             */
            maxTotalCostMicros?: number | null;
            /**
             * Format: int64
             * @description 128 to 65536; default 4096.
             * @default null
             */
            memoryMiB?: number | null;
            /**
             * @description Unique while it is held.
             * @default null
             */
            name?: string | null;
            /** @default null */
            network?: components["schemas"]["NetworkRules"] | null;
            /**
             * @description `pause`, `stop` or `delete`.
             * @default null
             */
            onLeaseEnd?: string | null;
            /**
             * @description The newer name of `onLeaseEnd`.
             * @default null
             */
            onTimeout?: string | null;
            /**
             * @description Accepted, not used.
             * @default null
             */
            pausable?: boolean | null;
            /**
             * @description No time limit and no idle pause unless they are given.
             * @default null
             */
            persistent?: boolean | null;
            /** @default null */
            region?: string | null;
            /**
             * @description Egress secrets it may use; null = all.
             * @default null
             */
            secrets?: string[] | null;
            /** @default null */
            snapshot?: string | null;
            /** @default null */
            spreadFrom?: string[] | null;
            tailscale?: unknown;
            /**
             * Format: int32
             * @description 0 = no limit, else 60 to 86400.
             * @default null
             */
            timeoutSeconds?: number | null;
            /**
             * @description `sandbox` or `root`.
             * @default null
             */
            user?: string | null;
            /**
             * Format: int32
             * @description 1 to 16; default 2.
             * @default null
             */
            vcpu?: number | null;
            /** @default null */
            volumes?: unknown[] | null;
        };
        CreateSession: {
            name?: string | null;
            /** @description At most 16: `https://host[:port]` or `http://localhost[:port]`. Without any, no page may use it, only programs. */
            origins?: string[];
            /**
             * Format: int32
             * @description 60 to 86400; 3600 if absent.
             */
            ttlSeconds?: number | null;
        };
        /** @description Nothing is charged on a server of one's own. */
        Credit: {
            addedBy: string;
            availableMicros: string;
            dailyPaceMicros: string;
            /** Format: int32 */
            lowBelowDays: number;
            /** Format: int32 */
            runwayDays?: number | null;
            /** @description `ok`, `low` or `empty`. */
            state: string;
        };
        /** @description What a key may spend in a day; a server of one's own has no such limit. */
        DailyLimit: {
            limitMicros?: string | null;
            remainingMicros?: string | null;
            usedMicros: string;
            window: string;
        };
        DecidedProcess: {
            /** Format: int32 */
            pid: number;
            /** @description The command or process of this API that it belongs to. */
            processId?: string | null;
            program: string;
        };
        DeletedPreview: {
            deleted: boolean;
            id: string;
            /** Format: int32 */
            port: number;
            sandboxId: string;
        };
        /** @description The answer to a delete, the same each time. */
        DeletedSandbox: {
            deletedAt: components["schemas"]["Time"];
            endedAt: components["schemas"]["Time"];
            id: string;
            kind: string;
            labels: {
                [key: string]: string;
            };
            name?: string | null;
            /** @description `stopping` if a machine was there, else `stopped`. */
            state: string;
            /** @description `deleted`. */
            status: string;
        };
        /** @description Its copy off this host. */
        Durability: {
            durableAt?: components["schemas"]["Time"] | null;
            /** @description `none`: it lies on this host alone. */
            state: string;
            /** Format: int64 */
            storedBytes?: number | null;
        };
        /** @description An answer that says only that it was done: `{}`. */
        Empty: Record<string, never>;
        /** @description The only key is `error`. */
        ErrorBody: {
            error: components["schemas"]["ErrorInfo"];
        };
        ErrorInfo: {
            /** @description Stable, snake_case. */
            code: string;
            /** @description For `invalid_request`: `issues`, a list of every wrong field with its `path` and `message`. */
            details?: {
                [key: string]: unknown;
            } | null;
            hint?: string | null;
            message: string;
            /** @description Also in the header `x-request-id`, and in the server's log. */
            requestId: string;
            /** Format: int64 */
            retryAfterMs?: number | null;
            retryable?: boolean | null;
            /**
             * Format: int32
             * @description The HTTP status.
             */
            status: number;
        };
        /** @description How a command ended, and the head of its output. */
        ExecAnswer: {
            /** Format: int64 */
            durationMs?: number | null;
            /**
             * Format: int32
             * @description A shell's exit code; ended by a signal: its number, negative.
             */
            exitCode?: number | null;
            files?: components["schemas"]["TracedFiles"] | null;
            outOfMemory?: components["schemas"]["OutOfMemory"] | null;
            processId: string;
            /** @description True if this is the answer to an earlier request with the same idempotency key. */
            replayed?: boolean;
            stderr: string;
            stderrTruncated: boolean;
            /** @description UTF-8; bytes that are not become U+FFFD. */
            stdout: string;
            stdoutTruncated: boolean;
            /** @description The time was up: everything it started was killed and the output so far is here. */
            timedOut: boolean;
        };
        /** @description One line of a streamed exec or a followed output. A blank line between events means only that both ends live. */
        ExecEvent: {
            processId: string;
            replayed?: boolean;
            /** @enum {string} */
            type: "start";
        } | (components["schemas"]["OutputPiece"] & {
            /** @enum {string} */
            type: "stdout";
        }) | (components["schemas"]["OutputPiece"] & {
            /** @enum {string} */
            type: "stderr";
        }) | {
            /** Format: int64 */
            droppedBytes: number;
            /** Format: int64 */
            resumeAt: number;
            /** @enum {string} */
            type: "truncated";
        } | (components["schemas"]["ExitEvent"] & {
            /** @enum {string} */
            type: "exit";
        }) | {
            /** Format: int64 */
            cursor: number;
            processId: string;
            /** @enum {string} */
            type: "continue";
        } | {
            /** Format: int64 */
            cursor: number;
            error: components["schemas"]["StreamError"];
            /** @enum {string} */
            type: "error";
        };
        /** @description Exactly one of `command` and `argv`. */
        ExecRequest: {
            /**
             * @description A program, looked up on the sandbox's PATH, and its arguments; no shell.
             * @default null
             */
            argv?: string[] | null;
            /**
             * @description A line for `bash -c`.
             * @default null
             */
            command?: string | null;
            /**
             * @description Absolute; `/workspace` if left out.
             * @default null
             */
            cwd?: string | null;
            /**
             * @description Over the sandbox's variables.
             * @default {}
             */
            env?: {
                [key: string]: string;
            };
            /**
             * @description Standard input, then closed.
             * @default null
             */
            stdin?: string | null;
            /**
             * @description The same as base64; not together with `stdin`.
             * @default null
             */
            stdinBase64?: string | null;
            /**
             * @description Answer newline-delimited JSON events.
             * @default false
             */
            stream?: boolean;
            /**
             * Format: int64
             * @description 1 to 86,400,000; 60,000 if left out.
             * @default null
             */
            timeoutMs?: number | null;
            /**
             * @description Report the files the command read and wrote.
             * @default false
             */
            traceFiles?: boolean;
            /** @default null */
            user?: components["schemas"]["CommandUser"] | null;
        };
        ExitEvent: {
            /** Format: int64 */
            durationMs?: number | null;
            /** Format: int32 */
            exitCode?: number | null;
            files?: components["schemas"]["TracedFiles"] | null;
            outOfMemory?: components["schemas"]["OutOfMemory"] | null;
            state: components["schemas"]["ProcessState"];
            timedOut: boolean;
        };
        ExtendSandbox: {
            /**
             * Format: int32
             * @description At least 1; the limit is never more than a day from now.
             */
            seconds: number;
        };
        ExtendSnapshot: {
            /**
             * Format: int32
             * @description From now on, 1 to 365; never more than a year from when it was taken.
             */
            retentionDays: number;
        };
        FileChange: {
            /**
             * Format: int32
             * @description Changes of the same kind that this one stands for, if more than one.
             */
            count?: number | null;
            isDir: boolean;
            /** @description Of a rename. */
            oldPath?: string | null;
            path: string;
            type: components["schemas"]["ChangeType"];
        };
        /** @description A file as the sandbox shows it; links are not followed. */
        FileEntry: {
            /** Format: int32 */
            gid: number;
            group: string;
            /** @description Four octal digits, like `0644`. */
            mode: string;
            /** Format: date-time */
            modifiedAt: string;
            /** Format: int64 */
            mtimeMs: number;
            name: string;
            owner: string;
            path: string;
            /** Format: int64 */
            size: number;
            symlinkTarget?: string | null;
            type: components["schemas"]["FileType"];
            /** Format: int32 */
            uid: number;
        };
        FileFound: components["schemas"]["FileEntry"] & {
            exists: boolean;
        };
        FileListing: {
            data: components["schemas"]["FileEntry"][];
        };
        FileMissing: {
            exists: boolean;
            path: string;
        };
        /** @description What is at a path: an entry with `exists: true`, or `exists: false` and the path. */
        FileStat: components["schemas"]["FileFound"] | components["schemas"]["FileMissing"];
        /** @enum {string} */
        FileType: "file" | "directory" | "symlink" | "other";
        FileWritten: {
            path: string;
            /** Format: int64 */
            size: number;
        };
        ForkSandbox: {
            /**
             * Format: int32
             * @description 1 to 16; default 1.
             * @default null
             */
            count?: number | null;
            /**
             * @description Accepted, not used.
             * @default null
             */
            funding?: string | null;
            /**
             * @description Keeps the snapshot that the copies are made from.
             * @default null
             */
            keepSnapshot?: boolean | null;
            /**
             * @description Those of the sandbox if left out.
             * @default null
             */
            labels?: {
                [key: string]: string;
            } | null;
            /**
             * @description Of the first copy; the others are called `name-1`, `name-2` and so on.
             * @default null
             */
            name?: string | null;
            /** @default null */
            secrets?: string[] | null;
        };
        Forked: {
            sandboxes: components["schemas"]["Sandbox"][];
        };
        InputAnswer: {
            /**
             * Format: int64
             * @description Input bytes accepted so far.
             */
            offset: number;
        };
        /** @description Input for a process; one of `base64` and `data`, at most 1 MiB of bytes. */
        InputRequest: {
            /** @default null */
            base64?: string | null;
            /** @default null */
            data?: string | null;
            /**
             * @description Close the input once all of this was accepted.
             * @default false
             */
            eof?: boolean;
            /**
             * Format: int64
             * @description Input bytes accepted before this write; what the process has already is skipped.
             * @default 0
             */
            offset?: number;
        };
        /** @description Money is whole microdollars, as text. */
        Limits: {
            /** @description `full` or `read`. */
            access: string;
            account: components["schemas"]["AccountLimit"][];
            credit: components["schemas"]["Credit"];
            daily: components["schemas"]["DailyLimit"];
            /** @description No trial on a server of one's own. */
            trial?: unknown;
        };
        MakeDirRequest: {
            /**
             * @description Make missing parents too, and be content with a directory that is there.
             * @default false
             */
            parents?: boolean;
            /** @default  */
            path?: string;
        };
        Me: {
            apiVersion: string;
            credentialId?: string | null;
            orgId: string;
            orgName?: string | null;
            principalId: string;
            /** @description `owner` for an account-wide key, else `developer`. */
            role?: string | null;
        };
        /** @description One connection, or one request on a connection to the proxy. */
        NetworkDecision: {
            address?: string | null;
            at: components["schemas"]["Time"];
            endedAt?: components["schemas"]["Time"] | null;
            host: string;
            /** @description `CONNECT`, or a method of HTTP. */
            method: string;
            /** Format: int64 */
            number: number;
            /** Format: int32 */
            port: number;
            process?: components["schemas"]["DecidedProcess"] | null;
            /** @description What allowed it (`open`, `allow`, `connect`), or the value of `X-Runtime-Egress`. */
            reason: string;
            /**
             * Format: int64
             * @description To the sandbox.
             */
            receivedBytes: number;
            /** @description The entry that decided. */
            rule?: string | null;
            /** Format: int64 */
            rulesVersion: number;
            /**
             * Format: int64
             * @description By the sandbox.
             */
            sentBytes: number;
            /** @description `allowed` or `refused`. */
            verdict: string;
        };
        /** @description Newest first. */
        NetworkDecisionPage: {
            data: components["schemas"]["NetworkDecision"][];
            /** @description Null at the end. */
            nextCursor?: string | null;
            /**
             * Format: int64
             * @description Decisions so far, also those no longer kept.
             */
            total: number;
        };
        /** @description An entry of `allow` and `deny` is a name, `*.` and a domain (all below it), an address, or a range of addresses. */
        NetworkRules: {
            /**
             * @description Filled: only these.
             * @default null
             */
            allow?: string[] | null;
            /**
             * @description `host:port`, reachable beside `allow`.
             * @default null
             */
            connect?: string[] | null;
            /**
             * @description Wins over everything.
             * @default null
             */
            deny?: string[] | null;
            /**
             * @description False refuses everything; with a filled `allow`, it means that list and nothing else.
             * @default false
             */
            internet: boolean;
        };
        /** @description The only answer that holds the token. */
        NewSession: components["schemas"]["Session"] & {
            /** @description Where the page finds this API. */
            apiUrl: string;
            replayed?: boolean | null;
            /** @description Sent as `Authorization: Bearer`. Null where the answer repeats an earlier one: only a hash of it is kept. */
            token?: string | null;
        };
        /** @description Memory ran out and the program, or one it started, was ended for it. */
        OutOfMemory: {
            /** @description Always `out_of_memory`. */
            code: string;
            hint: string;
            /** Format: int64 */
            memoryMiB: number;
            message: string;
            /** Format: int32 */
            processesKilled: number;
        };
        OutputChunk: {
            base64?: string | null;
            /** Format: int64 */
            offset: number;
            stream: components["schemas"]["OutputStream"];
            text: string;
        };
        /** @enum {string} */
        OutputEncoding: "utf8" | "base64";
        OutputPiece: {
            /** @description The bytes themselves, if they are not UTF-8 or the process was started with `outputEncoding: base64`. */
            base64?: string | null;
            /** @description Text; where the bytes are not UTF-8, U+FFFD stands for them. */
            data: string;
            /**
             * Format: int64
             * @description Place of the first byte in the combined output of the process.
             */
            offset: number;
        };
        /** @description One poll of a process's output. */
        OutputPoll: {
            /** @description In order; an offset beyond the cursor asked for means that output between was lost. */
            chunks: components["schemas"]["OutputChunk"][];
            /** Format: int64 */
            nextCursor: number;
            process: components["schemas"]["ProcessInfo"];
        };
        /** @enum {string} */
        OutputStream: "stdout" | "stderr";
        /** @enum {string} */
        OverflowReason: "kernel" | "rate";
        /** @description A port of a sandbox that browsers and programs reach under an address of its own. */
        Preview: {
            createdAt: components["schemas"]["Time"];
            disabled: boolean;
            /** @description Sites that may show it in a frame; null = any. */
            embedOrigins?: string[] | null;
            hint?: string | null;
            /** @description A lower-case UUID with dashes. */
            id: string;
            /** Format: int32 */
            port: number;
            replayed?: boolean | null;
            sandboxId: string;
            /** @description Sent as `X-Runtime-Preview-Token`. Null if it is public, and for a key that may only read. */
            token?: string | null;
            tokenExpiresAt?: components["schemas"]["Time"] | null;
            url: string;
            /** @description To be opened in a browser, which keeps the token as a cookie. */
            urlWithToken?: string | null;
            /** @description `private`: with a token; `public`: for everybody. */
            visibility: string;
        };
        PreviewList: {
            /** @description By port. */
            data: components["schemas"]["Preview"][];
        };
        ProcessInfo: {
            /** @description The command line for people, cut at 256 characters. */
            command: string;
            cwd: string;
            /** Format: date-time */
            endedAt?: string | null;
            /**
             * Format: int32
             * @description Null while it runs; negative: ended by that signal.
             */
            exitCode?: number | null;
            /**
             * Format: int64
             * @description The oldest byte that can still be read.
             */
            firstOffset: number;
            id: string;
            /** @description Always `process`. */
            kind: string;
            outOfMemory?: components["schemas"]["OutOfMemory"] | null;
            /**
             * Format: int64
             * @description Bytes of output so far, both streams: the cursor of the end.
             */
            outputBytes: number;
            outputEncoding: components["schemas"]["OutputEncoding"];
            /**
             * Format: int32
             * @description Inside the sandbox.
             */
            pid: number;
            pty: boolean;
            replayed?: boolean;
            /** Format: date-time */
            startedAt: string;
            state: components["schemas"]["ProcessState"];
            /**
             * Format: int64
             * @description Input bytes accepted so far.
             */
            stdinOffset: number;
            stdinOpen: boolean;
            /** Format: int64 */
            timeoutMs?: number | null;
            user: components["schemas"]["CommandUser"];
        };
        ProcessList: {
            data: components["schemas"]["ProcessInfo"][];
        };
        /** @description What to start; exactly one of `command` and `argv`. */
        ProcessRequest: {
            /** @default null */
            argv?: string[] | null;
            /** @default null */
            command?: string | null;
            /** @default null */
            cwd?: string | null;
            /** @default {} */
            env?: {
                [key: string]: string;
            };
            /** @default null */
            outputEncoding?: components["schemas"]["OutputEncoding"] | null;
            /** @default null */
            pty?: components["schemas"]["PtySize"] | null;
            /** @default null */
            stdin?: string | null;
            /** @default null */
            stdinBase64?: string | null;
            /** @default null */
            stdinMode?: components["schemas"]["StdinMode"] | null;
            /**
             * Format: int64
             * @description 1 to 86,400,000; no limit of its own if left out.
             * @default null
             */
            timeoutMs?: number | null;
            /** @default false */
            traceFiles?: boolean;
            /** @default null */
            user?: components["schemas"]["CommandUser"] | null;
        };
        /** @enum {string} */
        ProcessState: "running" | "exited" | "killed" | "timed_out" | "unknown";
        PtySize: {
            /** Format: int32 */
            cols: number;
            /** Format: int32 */
            rows: number;
        };
        RemoveAnswer: {
            /** @description False: there was nothing. */
            removed: boolean;
        };
        RemoveRequest: {
            /** @default  */
            path?: string;
            /**
             * @description Remove a directory with all that is in it.
             * @default false
             */
            recursive?: boolean;
        };
        RenameRequest: {
            /** @default  */
            from?: string;
            /** @default false */
            overwrite?: boolean;
            /** @default  */
            to?: string;
        };
        /** @description What is left out stays as it is; one of the sizes is needed. */
        ResizeSandbox: {
            /**
             * Format: int64
             * @description A disk only grows.
             */
            diskMiB?: number | null;
            /** Format: int64 */
            memoryMiB?: number | null;
            /** @description It may be stopped and started again for this, which loses what is in its memory. */
            restart: boolean;
            /**
             * Format: int32
             * @description 1 to 16.
             */
            vcpu?: number | null;
        };
        /** @description A sandbox as every call answers it. */
        Sandbox: {
            autoWake: boolean;
            /** Format: int64 */
            chargedMicros: number;
            /** @description `shared` or `reserved`. */
            cpu: string;
            /** Format: int32 */
            cpuFloorMillis: number;
            createdAt: components["schemas"]["Time"];
            diskKept: boolean;
            /** Format: int64 */
            diskMiB: number;
            endedAt?: components["schemas"]["Time"] | null;
            endsAt?: components["schemas"]["Time"] | null;
            /** @description Which engine runs it. */
            engine?: string | null;
            /** @description Names only; not in lists. */
            envNames?: string[] | null;
            expiresAt?: components["schemas"]["Time"] | null;
            funding: string;
            /** Format: int64 */
            heldMicros: number;
            /** @description A lower-case UUID with dashes. */
            id: string;
            /**
             * Format: int32
             * @description 0 = never.
             */
            idlePauseSeconds: number;
            image?: string | null;
            /** @description `sandbox`. */
            kind: string;
            labels: {
                [key: string]: string;
            };
            lastActiveAt?: components["schemas"]["Time"] | null;
            /** Format: int64 */
            maxTotalCostMicros?: number | null;
            /** Format: int64 */
            memoryMiB: number;
            memoryRestored?: boolean | null;
            name?: string | null;
            /** @description The same as `onTimeout`. */
            onLeaseEnd: string;
            onTimeout: string;
            pausable: boolean;
            pausedAt?: components["schemas"]["Time"] | null;
            pausedExpiresAt?: components["schemas"]["Time"] | null;
            persistent: boolean;
            readyAt?: components["schemas"]["Time"] | null;
            region: string;
            /** @description On the answer to a repeated request. */
            replayed?: boolean | null;
            /** @description On the answer of a create that found the named sandbox. */
            reused?: boolean | null;
            /** @description Null: every secret. */
            secrets?: string[] | null;
            snapshot?: string | null;
            /** @description `starting`, `running`, `pausing`, `paused`, `resuming`, `stopping`, `stopped`. */
            state: string;
            /** @description Coarse: `pending`, `active`, `paused`, `stopping`, `stopped`. */
            status: string;
            stopReason?: string | null;
            /**
             * Format: int32
             * @description 0 = no limit.
             */
            timeoutSeconds: number;
            /** @description Who commands run as unless they say: `sandbox` or `root`. */
            user: string;
            /** Format: int32 */
            vcpu: number;
        };
        /** @description The rules as they are kept. */
        SandboxNetwork: {
            allow: string[];
            connect: string[];
            connectAllowed: boolean;
            connectReason: string;
            deny: string[];
            /** @description The host holds it to this version. */
            enforced: boolean;
            /** Format: int64 */
            enforcedVersion: number;
            forbiddenPorts: number[];
            internet: boolean;
            /** @description Every port is, but the forbidden ones. */
            openPorts: boolean;
            /** @description Reachable without a `connect` entry, whoever asks. */
            ports: number[];
            sandboxId: string;
            updatedAt?: components["schemas"]["Time"] | null;
            /**
             * Format: int64
             * @description Grows with each change.
             */
            version: number;
        };
        /** @description A page, oldest first. */
        SandboxPage: {
            data: components["schemas"]["Sandbox"][];
            /** @description Null at the end. */
            nextCursor?: string | null;
        };
        SandboxRetention: {
            /**
             * Format: int32
             * @description 1 to 365; null keeps it.
             */
            days?: number | null;
        };
        /**
         * @description A way into one sandbox for a web page, without a key. Its token reaches `:exec`, processes, files, uploads, the
         *     interpreter, the record and the list of previews of that sandbox, and nothing else.
         */
        Session: {
            createdAt: components["schemas"]["Time"];
            /** @description The id of the key that made it. When that key is revoked, the session ends. */
            createdBy: string;
            expiresAt: components["schemas"]["Time"];
            /** @description A lower-case UUID with dashes. */
            id: string;
            name?: string | null;
            /** @description Origins whose pages may use it, as browsers write them. */
            origins: string[];
            revokedAt?: components["schemas"]["Time"] | null;
            sandboxId: string;
            /** @description `active`, `expired` or `revoked`. */
            state: string;
        };
        /** @description Those that live, and those that ended within a day; newest first. */
        SessionList: {
            data: components["schemas"]["Session"][];
            /** @description Always null: there is one page. */
            nextCursor?: string | null;
        };
        /**
         * @description Signals that may be sent; each goes to the whole tree of the process.
         * @enum {string}
         */
        SignalName: "SIGTERM" | "SIGKILL" | "SIGINT" | "SIGHUP" | "SIGQUIT" | "SIGUSR1" | "SIGUSR2";
        SignalRequest: {
            signal: components["schemas"]["SignalName"];
        };
        /** @description What a sandbox was, kept apart from it. */
        Snapshot: {
            /** @description A copy lies on another host. */
            backedUp: boolean;
            createdAt: components["schemas"]["Time"];
            durability: components["schemas"]["Durability"];
            engine?: string | null;
            error?: string | null;
            expiresAt: components["schemas"]["Time"];
            /** @description A lower-case UUID with dashes. */
            id: string;
            /** @description `snapshot`. */
            kind: string;
            labels: {
                [key: string]: string;
            };
            /** Format: int64 */
            meteredBytes?: number | null;
            /** @description `memory`: disk, memory and processes; `disk`: the disk alone. */
            mode: string;
            name?: string | null;
            readyAt?: components["schemas"]["Time"] | null;
            replayed?: boolean | null;
            /**
             * Format: int32
             * @description What was asked for; null = as long as it may be kept.
             */
            retentionDays?: number | null;
            shape: components["schemas"]["SnapshotShape"];
            sourceSandboxId: string;
            /** @description `capturing`, `ready`, `failed`, `deleting`, `deleted`. */
            state: string;
            /** @description The same as `state`. */
            status: string;
            /**
             * Format: int64
             * @description What it took up by itself when it was taken.
             */
            storedBytes?: number | null;
        };
        /** @description A page, oldest first. */
        SnapshotPage: {
            data: components["schemas"]["Snapshot"][];
            /** @description Null at the end. */
            nextCursor?: string | null;
        };
        /** @description The size of its source. */
        SnapshotShape: {
            /** Format: int64 */
            diskMiB: number;
            /** Format: int64 */
            memoryGuarantee?: number | null;
            /** Format: int64 */
            memoryMiB: number;
            /** Format: int32 */
            vcpu: number;
        };
        /** @enum {string} */
        StdinMode: "pipe";
        StreamError: {
            code: string;
            hint?: string | null;
            message: string;
            requestId?: string | null;
            retryable?: boolean | null;
            /** Format: int32 */
            status: number;
        };
        TakeSnapshot: {
            /**
             * @description Those of the sandbox if left out.
             * @default null
             */
            labels?: {
                [key: string]: string;
            } | null;
            /**
             * @description `memory`, the default, or `disk`.
             * @default null
             */
            mode?: string | null;
            /** @default null */
            name?: string | null;
            /**
             * Format: int32
             * @description 1 to 365.
             * @default null
             */
            retentionDays?: number | null;
        };
        /** Format: date-time */
        Time: string;
        /**
         * @description Files that a traced command, and all that it started, opened: absolute paths with links resolved, sorted;
         *     directories end in `/`. What is below `/proc`, `/sys` and `/dev` is left out.
         */
        TracedFiles: {
            /** @description Opened for reading, or run. */
            read: string[];
            /** @description There were more: the lists are not complete. */
            truncated: boolean;
            /** @description Opened for writing, or made: a rename's new name, a link, a directory. */
            written: string[];
        };
        /** @description Fields left out stay as they are. */
        UpdateSandbox: {
            /** @default null */
            autoWake?: boolean | null;
            /**
             * @description Adds and replaces; a null value removes a variable.
             * @default null
             */
            env?: {
                [key: string]: string | null;
            } | null;
            /**
             * Format: int32
             * @description Counted from now.
             * @default null
             */
            idlePauseSeconds?: number | null;
            /**
             * @description Replaces all labels.
             * @default null
             */
            labels?: {
                [key: string]: string;
            } | null;
            /**
             * Format: int64
             * @description Null clears it.
             * @default null
             */
            maxTotalCostMicros?: number | null;
            /**
             * @description Null gives the name up.
             * @default null
             */
            name?: string | null;
            /** @default null */
            network?: components["schemas"]["NetworkRules"] | null;
            /** @default null */
            onLeaseEnd?: string | null;
            /** @default null */
            onTimeout?: string | null;
            /** @default null */
            persistent?: boolean | null;
            /** @description Null leaves. */
            tailscale?: unknown;
            /**
             * Format: int32
             * @description A new limit from now; 0 removes it.
             * @default null
             */
            timeoutSeconds?: number | null;
            /** @default null */
            user?: string | null;
        };
        UpdateSnapshot: {
            /**
             * @description Nothing is changed unless these are its labels.
             * @default null
             */
            ifLabels?: {
                [key: string]: string;
            } | null;
            /**
             * @description Replaces all labels.
             * @default null
             */
            labels?: {
                [key: string]: string;
            } | null;
            /**
             * @description Null gives the name up.
             * @default null
             */
            name?: string | null;
        };
        UploadProgress: {
            /**
             * Format: int64
             * @description Bytes that are here now.
             */
            received: number;
        };
        /** @description A file that comes in chunks. */
        UploadRequest: {
            /**
             * @description Octal digits, like `644`, which it is if left out.
             * @default null
             */
            mode?: string | null;
            /** @default  */
            path?: string;
            /**
             * @description Of the whole file, in hexadecimal.
             * @default
             */
            sha256?: string;
            /**
             * Format: int64
             * @default 0
             */
            size?: number;
        };
        UploadStarted: {
            /**
             * Format: int64
             * @description Bytes of each chunk; only the last of a file is shorter.
             */
            chunkBytes: number;
            /** @description As it was sent. */
            mode?: string | null;
            uploadId: string;
        };
        WakeSandbox: {
            /**
             * Format: int32
             * @description Its time limit from now on; its own if left out.
             */
            timeoutSeconds?: number | null;
        };
        /** @enum {string} */
        WatchEndReason: "stopped" | "timeout" | "root-removed";
        WatchInfo: {
            /**
             * Format: int64
             * @description Where to read from: of a start its beginning, in a list after all that was seen.
             */
            cursor: number;
            id: string;
            path: string;
            /** @description The same as `id`: no process of the sandbox is behind it. */
            processId: string;
            /**
             * Format: int64
             * @description Milliseconds since 1970.
             */
            startedAt: number;
            state: components["schemas"]["WatchState"];
        };
        /** @description A line of a followed watch, and a notice of a poll. `cursor` is where to go on. */
        WatchLine: {
            /** Format: int64 */
            cursor: number;
            events: components["schemas"]["FileChange"][];
            /** @enum {string} */
            k: "events";
        } | {
            /** Format: int64 */
            cursor: number;
            /** Format: int64 */
            dropped?: number | null;
            /** @enum {string} */
            k: "overflow";
            reason: components["schemas"]["OverflowReason"];
        } | {
            /** Format: int64 */
            cursor: number;
            /** @enum {string} */
            k: "limit";
            /** Format: int32 */
            watches: number;
        } | {
            /** Format: int64 */
            bytes: number;
            /** Format: int64 */
            cursor: number;
            /** @enum {string} */
            k: "lost";
        } | {
            /** Format: int64 */
            cursor: number;
            /** @enum {string} */
            k: "end";
            reason: components["schemas"]["WatchEndReason"];
        } | {
            /** Format: int64 */
            cursor: number;
            /** @enum {string} */
            k: "paused";
        } | {
            /** Format: int64 */
            cursor: number;
            /** @enum {string} */
            k: "continue";
        } | {
            code: string;
            /** Format: int64 */
            cursor: number;
            hint?: string | null;
            /** @enum {string} */
            k: "failure";
            message: string;
            requestId: string;
            /** Format: int32 */
            status: number;
        };
        WatchList: {
            data: components["schemas"]["WatchInfo"][];
        };
        WatchPoll: {
            /** @description Nothing more comes. */
            ended: boolean;
            events: components["schemas"]["FileChange"][];
            /**
             * Format: int64
             * @description Bytes of what was seen that are no longer held.
             */
            lostBytes: number;
            /** Format: int64 */
            nextCursor: number;
            /** @description Everything but events. */
            notices: components["schemas"]["WatchLine"][];
        };
        WatchRequest: {
            /**
             * Format: int32
             * @description Changes are collected for so long after the first; 100 if left out.
             */
            batchMs?: number | null;
            /** @description All but `access` if left out. */
            events?: components["schemas"]["ChangeType"][] | null;
            /** @description A directory that matches is left out with all below. */
            exclude?: string[] | null;
            /** @description Its name; one is made if left out. */
            id?: string | null;
            /** @description Patterns; one with a slash is for the path below `path`, one without for each name. */
            include?: string[] | null;
            /**
             * Format: int32
             * @description Directories that are looked at, at most.
             */
            maxWatches?: number | null;
            /** @description Absolute: a directory, or one file. */
            path: string;
            /** @description All directories below, too. */
            recursive?: boolean;
            /**
             * Format: int64
             * @description One hour if left out, 0 until stopped.
             */
            timeoutMs?: number | null;
            /** @description Not on this server. */
            webhook?: boolean | null;
        };
        /** @enum {string} */
        WatchState: "running" | "ended";
        WatchStopped: {
            /** @description False: it had ended. */
            stopped: boolean;
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type $defs = Record<string, never>;
export type operations = Record<string, never>;
