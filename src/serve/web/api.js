/* The server as the page uses it: requests, the event stream, and errors in plain words.
 * Addresses are relative, so the page also works behind a proxy's path. */

export class ApiError extends Error {
    /* kind: key | loading | context | busy | network | cut | request | server */
    constructor(kind, message, detail = '') {
        super(message);
        this.kind = kind;
        this.detail = detail;
    }
}

/* An error object of the API (or of an event of a stream) in words that say what to do. */
function explain(status, error = {}) {
    const message = String(error.message ?? '');
    const code = String(error.code ?? ''),
        type = String(error.type ?? '');
    if (status === 401 || type === 'authentication_error') {
        return new ApiError('key', 'This server wants an API key.', message);
    }
    if (code === 'context_length_exceeded' || type === 'exceed_context_size_error') {
        const { n_prompt_tokens: need, n_ctx: have } = error;
        const known = Number.isFinite(need) && Number.isFinite(have);
        const [n, limit] = known ? [need, have].map((v) => v.toLocaleString('en')) : [];
        const counts = known ? ` It has ${n} tokens; the model’s context holds ${limit}.` : '';
        return new ApiError(
            'context',
            `This conversation is too long for the model.${counts} ` +
                'Start a new chat, shorten the last message, or give the server more context (-c).',
            message,
        );
    }
    if (status === 503 && (code === 'model_loading' || /loading/i.test(message))) {
        return new ApiError(
            'loading',
            'The model is still loading. Try again in a moment.',
            message,
        );
    }
    if (status === 503 || status === 429) {
        return new ApiError(
            'busy',
            'The server has too much to do right now. Try again in a moment.',
            message,
        );
    }
    if (status >= 400 && status < 500) {
        return new ApiError('request', 'The server refused the request.', message);
    }
    return new ApiError('server', 'The server could not finish the answer.', message);
}

async function errorOf(response) {
    let body = '';
    try {
        body = await response.text();
        return explain(response.status, JSON.parse(body).error ?? {});
    } catch {
        return explain(response.status, {
            message: `HTTP ${response.status} ${body.slice(0, 300)}`.trim(),
        });
    }
}

async function request(path, { key, ...options } = {}) {
    const headers = { ...options.headers };
    if (key) headers.Authorization = `Bearer ${key}`;
    let response;
    try {
        response = await fetch(path, { ...options, headers, cache: 'no-store' });
    } catch (e) {
        if (e.name === 'AbortError') throw e;
        throw new ApiError(
            'network',
            'No connection to the server. Is it still running?',
            e.message,
        );
    }
    if (!response.ok) throw await errorOf(response);
    return response;
}

/* 'ready', 'loading' or 'away'. */
export async function health() {
    try {
        const response = await fetch('health', { cache: 'no-store' });
        return response.ok ? 'ready' : response.status === 503 ? 'loading' : 'away';
    } catch {
        return 'away';
    }
}

/* What the page shows of the model: {id, name, device, nCtx, pictures: does it read them, defaults}. */
export async function describe(key) {
    const models = await (await request('v1/models', { key })).json();
    const model = models.data?.[0] ?? {};
    const id = String(model.id ?? 'model');
    const name =
        id
            .split('/')
            .pop()
            .replace(/\.gguf$/, '') || id;
    const pictures = Boolean(model.input_modalities?.includes('image'));
    const nCtx = model.meta?.n_ctx;
    const about = { id, name, device: model.device, nCtx, pictures, defaults: {} };
    try {
        /* only a nicety: other servers may lack this route */
        const props = await (await request('props', { key })).json();
        const settings = props.default_generation_settings ?? {};
        about.nCtx ??= settings.n_ctx;
        about.defaults = settings.params ?? {};
        about.device ??= props.device?.kind;
    } catch (e) {
        if (e.kind === 'key') throw e;
    }
    return about;
}

/* The data of each event of a stream, as it comes. */
async function* events(body) {
    const reader = body.getReader();
    const decoder = new TextDecoder();
    let pending = '',
        data = [];
    try {
        for (;;) {
            const { done, value } = await reader.read();
            pending += done ? decoder.decode() : decoder.decode(value, { stream: true });
            const lines = pending.split(/\r\n|\n|\r(?!$)/);
            pending = lines.pop();
            for (const line of lines) {
                if (line.startsWith('data:')) {
                    data.push(line.slice(line[5] === ' ' ? 6 : 5));
                } else if (line === '' && data.length) {
                    yield data.join('\n');
                    data = [];
                }
            }
            if (done) return;
        }
    } finally {
        reader.cancel().catch(() => {});
    }
}

/* One answer: yields {content, reasoning} pieces and at last {finish, usage, timings}, each where
 * present. Throws ApiError, or AbortError after `signal`. */
export async function* complete(body, { key, signal }) {
    const response = await request('v1/chat/completions', {
        method: 'POST',
        key,
        signal,
        headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    });
    let finished = false;
    try {
        for await (const data of events(response.body)) {
            if (data === '[DONE]') return;
            let frame;
            try {
                frame = JSON.parse(data);
            } catch {
                throw new ApiError(
                    'server',
                    'The server sent something that is no answer.',
                    data.slice(0, 200),
                );
            }
            if (frame.error) throw explain(frame.error.status ?? 500, frame.error);
            const choice = frame.choices?.[0];
            const delta = choice?.delta ?? {};
            const finish = choice?.finish_reason ?? undefined;
            finished ||= Boolean(finish);
            yield {
                content: delta.content ?? '',
                reasoning: delta.reasoning_content ?? '',
                finish,
                usage: frame.usage ?? undefined,
                timings: frame.timings ?? undefined,
            };
        }
    } catch (e) {
        if (e instanceof ApiError || e.name === 'AbortError') throw e;
        throw new ApiError(
            'cut',
            'The connection broke before the answer was complete.',
            e.message,
        );
    }
    if (!finished)
        throw new ApiError('cut', 'The connection broke before the answer was complete.');
}
