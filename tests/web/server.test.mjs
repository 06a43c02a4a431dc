// The page and `1bit serve` with the demo model: what a user meets on the first day.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createServer } from 'node:net';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { ask, answered, executablePath, launch, openPage } from './browser.mjs';

const bin = process.env.ONEBIT_BIN || fileURLToPath(new URL('../../build/1bit', import.meta.url));
const model = process.env.ONEBIT_TEST_MODEL;
const skip = !executablePath
    ? 'Chromium is not installed'
    : !existsSync(bin)
      ? `${bin} has not been built`
      : !model || !existsSync(model)
        ? 'no demo model (ONEBIT_TEST_MODEL)'
        : false;

const freePort = () =>
    new Promise((done) => {
        const server = createServer().listen(0, '127.0.0.1', () => {
            const { port } = server.address();
            server.close(() => done(port));
        });
    });

let browser;
const servers = [];

async function serve(...args) {
    const port = await freePort();
    const child = spawn(
        bin,
        ['serve', '-m', model, '--port', String(port), '-c', '512', '--parallel', '2', ...args],
        { stdio: ['ignore', 'inherit', 'pipe'] },
    );
    let said = '';
    child.stderr.on('data', (bytes) => {
        said += bytes;
    });
    servers.push(child);
    const url = `http://127.0.0.1:${port}/`;
    for (let i = 0; i < 150; i++) {
        assert.equal(child.exitCode, null, `the server ended: ${said}`);
        const answer = await fetch(url + 'health').catch(() => null);
        if (answer?.ok) return url;
        await new Promise((done) => {
            setTimeout(done, 200);
        });
    }
    throw new Error(`the server is not ready after 30 s: ${said}`);
}

let url;
before(async () => {
    if (skip) return;
    [browser, url] = await Promise.all([launch(), serve()]);
});
after(async () => {
    await browser?.close();
    await Promise.all(
        servers.map(
            (child) =>
                new Promise((done) => {
                    if (child.exitCode !== null) done();
                    child.on('exit', done);
                    child.kill('SIGTERM');
                }),
        ),
    );
});

const set = (page, settings) =>
    page.evaluate((s) => localStorage.setItem('1bit.settings', JSON.stringify(s)), settings);

test(
    'server: a conversation streams, stops, goes on and survives a reload',
    { skip, timeout: 60000 },
    async () => {
        const { page, done } = await openPage(browser, url);
        await set(page, { temperature: 0, max_tokens: 64 });
        await page.reload();
        await page.waitForSelector('#dot[data-state="ready"]');
        assert.match(await page.innerText('#model-name'), /SmolLM2/);
        await page.evaluate(() => {
            window.sizes = new Set();
            new MutationObserver(() =>
                window.sizes.add(document.querySelector('.answer .text')?.textContent.length),
            ).observe(document.querySelector('#thread'), {
                childList: true,
                subtree: true,
                characterData: true,
            });
        });
        await ask(page, 'What is the capital of France?');
        let answer = await answered(page);
        const first = await answer.locator('.text').innerText();
        const said = await fetch(url + 'v1/chat/completions', {
            method: 'POST',
            body: JSON.stringify({
                messages: [{ role: 'user', content: 'What is the capital of France?' }],
                temperature: 0,
                max_tokens: 64,
            }),
        });
        assert.equal(first, (await said.json()).choices[0].message.content.trim());
        const sizes = await page.evaluate(() => [...window.sizes].filter((n) => n > 0));
        assert.ok(sizes.length > 1, `the text came in pieces: ${sizes}`);
        assert.match(
            await answer.locator('.stats').innerText(),
            /^\d+\.\d tok\/s · \d+ tokens · first token \d+\.\d\d s/,
        );
        assert.match(await page.innerText('#context'), /^\d+ of 512 tokens used$/);
        await page.click('.again:visible'); // at temperature 0 the same again
        answer = await answered(page);
        assert.equal(await answer.locator('.text').innerText(), first);

        await set(page, { temperature: 0, max_tokens: 400 });
        await page.reload();
        await page.waitForSelector('#dot[data-state="ready"]');
        assert.equal(await page.locator('.answer .text').innerText(), first);
        await ask(page, 'Write a long story about a fox.');
        await page.waitForFunction(
            () => document.querySelectorAll('.answer .text')[1]?.textContent.length > 20,
        );
        await page.keyboard.press('Escape');
        answer = await answered(page);
        assert.match(await answer.locator('.stats').innerText(), /stopped$/);
        // The server has stopped too: both sequences are idle again.
        await page.waitForFunction(async () =>
            (await (await fetch('slots')).json()).every((s) => !s.is_processing),
        );
        await done();
    },
);

test('server: a conversation that is too long says so', { skip, timeout: 60000 }, async () => {
    const { page, done } = await openPage(browser, url, { expect: /status of 400/ });
    await ask(page, 'many words '.repeat(600));
    const answer = await answered(page);
    assert.match(
        await answer.locator('.error > p').innerText(),
        /too long for the model\. It has [\d,]+ tokens; .* holds 512/,
    );
    await done();
});

test('server: every setting is taken', { skip, timeout: 60000 }, async () => {
    const { page, done } = await openPage(browser, url);
    await set(page, {
        system: 'Be brief.',
        temperature: 0.5,
        top_p: 0.9,
        top_k: 20,
        max_tokens: 4,
        seed: 7,
    });
    await page.reload();
    await page.waitForSelector('#dot[data-state="ready"]');
    await ask(page, 'Hi');
    const answer = await answered(page);
    assert.ok(await answer.locator('.error').isHidden());
    assert.match(await answer.locator('.stats').innerText(), /4 tokens/);
    await done();
});

test('server: asks for its key', { skip, timeout: 60000 }, async () => {
    const own = await serve('--api-key', 's3cret');
    const { page, done } = await openPage(browser, own, { expect: /status of 401/, ready: false });
    await page.waitForSelector('#ask-key[open]');
    await page.fill('#ask-key input', 's3cret');
    await page.press('#ask-key input', 'Enter');
    await page.waitForSelector('#dot[data-state="ready"]');
    await done();
});

test('server: sends the page with its guards and answers 304', { skip }, async () => {
    for (const [path, type] of [
        ['', 'text/html'],
        ['chat.css', 'text/css'],
        ['chat.js', 'text/javascript'],
    ]) {
        const answer = await fetch(url + path);
        assert.equal(answer.status, 200);
        assert.match(answer.headers.get('content-type'), new RegExp(`^${type}`));
        assert.match(
            answer.headers.get('content-security-policy'),
            /default-src 'none'; script-src 'self'; style-src 'self';/,
        );
        const again = await fetch(url + path, {
            headers: { 'If-None-Match': answer.headers.get('etag') },
        });
        assert.equal(again.status, 304);
    }
});
