// A server that looks like `1bit serve` to the page and answers what a test tells it to.
//
// mock.answer(body, response, request) is called for each chat completion; `say` and `fail` write
// the usual answers. mock.requests holds the bodies that came.
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { extname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const WEB = fileURLToPath(new URL('../../src/serve/web', import.meta.url));
const TYPES = { '.html': 'text/html; charset=utf-8', '.css': 'text/css', '.js': 'text/javascript' };
// As src/serve sends it.
const CSP =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; " +
    "font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; " +
    "frame-ancestors 'none'";

export const sleep = (ms) =>
    new Promise((done) => {
        setTimeout(done, ms);
    });

function json(response, code, value) {
    response.writeHead(code, { 'Content-Type': 'application/json' });
    response.end(JSON.stringify(value));
}

export function fail(response, code, error) {
    json(response, code, { error });
}

export const frame = (response, value) => response.write(`data: ${JSON.stringify(value)}\n\n`);

// Stream pieces: strings, or deltas such as {reasoning_content}.
export async function say(response, pieces, { delay = 0, finish = 'stop', timings, usage } = {}) {
    response.writeHead(200, { 'Content-Type': 'text/event-stream' });
    for (const piece of pieces) {
        if (response.destroyed) return;
        frame(response, {
            choices: [
                {
                    index: 0,
                    finish_reason: null,
                    delta: typeof piece === 'string' ? { content: piece } : piece,
                },
            ],
        });
        if (delay) await sleep(delay);
    }
    frame(response, { choices: [{ index: 0, delta: {}, finish_reason: finish }], timings });
    if (usage) frame(response, { choices: [], usage });
    response.end('data: [DONE]\n\n');
}

export async function startMock() {
    const mock = { requests: [], key: '', loading: false, modelId: 'mock-model', port: 0 };
    mock.answer = (body, response) => say(response, ['Hello.']);
    const server = createServer(async (request, response) => {
        const path = new URL(request.url, 'http://mock').pathname;
        const chunks = [];
        for await (const chunk of request) chunks.push(chunk);
        if (path === '/health') {
            json(response, mock.loading ? 503 : 200, { status: mock.loading ? 'loading' : 'ok' });
        } else if (/^\/([\w]+\.\w+)?$/.test(path)) {
            const name = path === '/' ? 'index.html' : path.slice(1);
            try {
                const bytes = await readFile(join(WEB, name));
                response.writeHead(200, {
                    'Content-Type': TYPES[extname(name)],
                    'Content-Security-Policy': CSP,
                });
                response.end(bytes);
            } catch {
                fail(response, 404, { message: 'no such route' });
            }
        } else if (mock.key && request.headers.authorization !== `Bearer ${mock.key}`) {
            fail(response, 401, {
                message: 'the API key is missing or wrong',
                type: 'authentication_error',
                code: 'invalid_api_key',
            });
        } else if (path === '/v1/models') {
            json(response, 200, {
                object: 'list',
                data: [
                    {
                        id: mock.modelId,
                        device: 'cpu',
                        meta: { n_ctx: 4096 },
                        input_modalities: mock.pictures ? ['text', 'image'] : ['text'],
                    },
                ],
            });
        } else if (path === '/props') {
            json(response, 200, {
                default_generation_settings: {
                    n_ctx: 4096,
                    params: { temperature: 0.8, top_k: 40 },
                },
            });
        } else if (path === '/v1/chat/completions') {
            const body = JSON.parse(Buffer.concat(chunks).toString());
            mock.requests.push(body);
            await mock.answer(body, response, request);
        } else {
            fail(response, 404, { message: 'no such route' });
        }
    });
    mock.listen = (port = 0) =>
        new Promise((done) => {
            server.listen(port, '127.0.0.1', () => {
                mock.port = server.address().port;
                mock.url = `http://127.0.0.1:${mock.port}/`;
                done();
            });
        });
    mock.close = () =>
        new Promise((done) => {
            server.close(done);
            server.closeAllConnections();
        });
    await mock.listen();
    return mock;
}
