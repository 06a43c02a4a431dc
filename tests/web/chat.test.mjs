// The page against a server that says what a test wants: every feature, error and hostile answer.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { ask, answered, executablePath, launch, openPage } from './browser.mjs';
import { fail, frame, say, sleep, startMock } from './mock.mjs';

const skip = executablePath ? false : 'Chromium is not installed';
let browser;

before(async () => {
    if (!skip) browser = await launch();
});
after(async () => {
    await browser?.close();
});

// A test with a mock server of its own and a page of its own.
function chatTest(name, options, body) {
    test(`chat: ${name}`, { skip }, async () => {
        const { before: prepare, ...pageOptions } = options;
        const mock = await startMock();
        try {
            prepare?.(mock);
            const opened = await openPage(browser, mock.url, pageOptions);
            try {
                await body({ ...opened, mock });
            } finally {
                await opened.done();
            }
        } finally {
            await mock.close();
        }
    });
}

const text = (page) => page.locator('.answer .text').last().innerText();
const REFUSED = /status of (4|5)\d\d/; // the browser logs every failed request by itself

chatTest('text arrives as it is made, with figures', {}, async ({ page, mock }) => {
    let go;
    const gate = new Promise((done) => {
        go = done;
    });
    mock.answer = async (body, response) => {
        response.writeHead(200, { 'Content-Type': 'text/event-stream' });
        response.write(': a comment\n\n');
        frame(response, { choices: [{ index: 0, delta: { role: 'assistant', content: 'Half' } }] });
        await gate;
        frame(response, { choices: [{ index: 0, delta: { content: ' of it: é' } }] });
        frame(response, {
            choices: [{ index: 0, delta: {}, finish_reason: 'stop' }],
            timings: { predicted_per_second: 123.4 },
        });
        frame(response, { choices: [], usage: { completion_tokens: 7, total_tokens: 1234 } });
        response.end('data: [DONE]\n\n');
    };
    await ask(page, 'Hi');
    await page.waitForFunction(
        () => document.querySelector('.answer .text').textContent === 'Half',
    );
    assert.equal(await page.getAttribute('.answer', 'aria-busy'), 'true');
    go();
    const answer = await answered(page);
    assert.equal(await text(page), 'Half of it: é');
    assert.equal(await answer.getAttribute('aria-busy'), 'false');
    assert.match(
        await answer.locator('.stats').innerText(),
        /^123\.4 tok\/s · 7 tokens · first token \d+\.\d\d s$/,
    );
    assert.equal(await page.innerText('#context'), '1,234 of 4,096 tokens used');
    const [sent] = mock.requests;
    assert.deepEqual(sent, {
        model: 'mock-model',
        messages: [{ role: 'user', content: 'Hi' }],
        stream: true,
        stream_options: { include_usage: true },
    });
});

chatTest(
    'a stream cut anywhere, even inside a character, is put together',
    {},
    async ({ page, mock }) => {
        mock.answer = async (body, response) => {
            const bytes = Buffer.from(
                'data: {"choices":[{"delta":{"content":"naïve 🙂"}}]}\r\n\r\n' +
                    'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
            );
            response.writeHead(200, { 'Content-Type': 'text/event-stream' });
            for (const byte of bytes) {
                response.write(Buffer.from([byte]));
                await sleep(1);
            }
            response.end();
        };
        await ask(page, 'Hi');
        await answered(page);
        assert.equal(await text(page), 'naïve 🙂');
    },
);

for (const [how, act] of [
    ['button', (page) => page.click('#stop')],
    ['Escape', (page) => page.keyboard.press('Escape')],
]) {
    chatTest(`stop by ${how} ends the request and keeps the text`, {}, async ({ page, mock }) => {
        let closed = false;
        mock.answer = async (body, response) => {
            response.on('close', () => {
                closed = true;
            });
            await say(response, Array(1000).fill('word '), { delay: 20 });
        };
        await ask(page, 'Go on');
        await page.waitForFunction(() =>
            /word word/.test(document.querySelector('.answer')?.textContent),
        );
        await act(page);
        const answer = await answered(page);
        const kept = await text(page);
        assert.match(kept, /^(word ?)+$/);
        assert.match(await answer.locator('.stats').innerText(), /stopped$/);
        await sleep(150);
        assert.ok(closed, 'the request was ended');
        assert.equal(await text(page), kept);
        mock.answer = (body, response) => say(response, ['more']);
        await ask(page, 'And?');
        await answered(page);
        assert.equal(mock.requests[1].messages[1].content.trim(), kept);
    });
}

chatTest(
    'answer again and edit replace the end of the conversation',
    {},
    async ({ page, mock }) => {
        mock.answer = (body, response) => say(response, [`answer ${mock.requests.length}`]);
        await ask(page, 'one');
        await answered(page);
        await ask(page, 'two');
        await answered(page);
        await page.locator('.again:visible').click();
        await page.waitForFunction(() =>
            /answer 3/.test(document.querySelector('#thread').textContent),
        );
        await answered(page);
        const said = () => mock.requests.at(-1).messages.map((m) => m.content);
        assert.deepEqual(said(), ['one', 'answer 1', 'two']);
        await page.locator('.user .tools .edit:visible').click();
        assert.ok((await page.locator('form.edit textarea').boundingBox()).height > 40);
        await page.fill('form.edit textarea', 'changed');
        await page.press('form.edit textarea', 'Escape');
        assert.equal(await page.locator('form.edit').count(), 0);
        await page.locator('.user .tools .edit:visible').click();
        await page.fill('form.edit textarea', 'changed');
        await page.press('form.edit textarea', 'Enter');
        await page.waitForFunction(() =>
            /answer 4/.test(document.querySelector('#thread').textContent),
        );
        await answered(page);
        assert.deepEqual(said(), ['one', 'answer 1', 'changed']);
        assert.deepEqual(await page.locator('.user .text').allInnerTexts(), ['one', 'changed']);
    },
);

chatTest(
    'copy of code and of messages',
    { permissions: ['clipboard-read', 'clipboard-write'] },
    async ({ page, mock }) => {
        mock.answer = (body, response) => say(response, ['Look:\n\n```c\nint x = 1;\n```\n']);
        await ask(page, 'Code');
        const answer = await answered(page);
        assert.equal(await answer.locator('.code-bar span').innerText(), 'c');
        assert.ok((await answer.locator('.c-word').count()) > 0);
        const clipboard = () => page.evaluate(() => navigator.clipboard.readText());
        await answer.locator('.copy-code').click();
        await page.waitForSelector('#toast:not([hidden])');
        assert.equal(await clipboard(), 'int x = 1;');
        await answer.locator('.tools .copy').click();
        await page.waitForFunction(async () =>
            (await navigator.clipboard.readText()).startsWith('Look'),
        );
        assert.equal(await clipboard(), 'Look:\n\n```c\nint x = 1;\n```\n');
    },
);

chatTest('reasoning is folded away and given back to the server', {}, async ({ page, mock }) => {
    let go;
    const gate = new Promise((done) => {
        go = done;
    });
    mock.answer = async (body, response) => {
        response.writeHead(200, { 'Content-Type': 'text/event-stream' });
        frame(response, { choices: [{ index: 0, delta: { reasoning_content: 'Hm, **well**.' } }] });
        await gate;
        await sleep(20);
        frame(response, {
            choices: [{ index: 0, delta: { content: 'Yes.' }, finish_reason: 'stop' }],
        });
        response.end('data: [DONE]\n\n');
    };
    await ask(page, 'Is it?');
    await page.waitForSelector('.thought[open] strong');
    assert.equal(await page.innerText('.thought summary'), 'Thinking…');
    go();
    await answered(page);
    assert.match(await page.innerText('.thought summary'), /^Thought for \d+\.\d s$/);
    assert.equal(await page.getAttribute('.thought', 'open'), null);
    assert.equal(await text(page), 'Yes.');
    await page.click('.thought summary');
    assert.ok(await page.isVisible('.thought strong'));
    mock.answer = (body, response) => say(response, ['ok']);
    await ask(page, 'Sure?');
    await answered(page);
    assert.equal(mock.requests[1].messages[1].reasoning_content, 'Hm, **well**.');
});

chatTest(
    'hostile text is inert wherever it comes from',
    {
        expect: REFUSED,
        before: (mock) => {
            mock.modelId = '<img src=x onerror=window.pwned=1>';
        },
    },
    async ({ page, mock }) => {
        const evil =
            '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>[x](javascript:window.pwned=1)\n\n' +
            '```<script>window.pwned=1</script>\n<img src=x onerror=window.pwned=1>\n```\n\n![x](https://evil.test/x.png)';
        mock.answer = (body, response) =>
            say(response, [...evil].concat([{ reasoning_content: evil }]));
        await ask(page, evil);
        await answered(page);
        mock.answer = (body, response) =>
            fail(response, 400, { message: evil, type: evil, code: evil });
        await ask(page, evil);
        await answered(page);
        await page.reload();
        await page.waitForSelector('.error:not([hidden])');
        assert.equal(await page.evaluate(() => window.pwned), undefined);
        assert.equal(
            await page.locator('img, iframe, #thread script, #thread svg:not(.icon svg)').count(),
            0,
        );
        assert.equal(await page.locator('a:not([href^="https://evil.test/"])').count(), 0);
        assert.match(await page.innerText('#model-name'), /^<img src=x/);
        assert.match(await page.locator('#chats .title').first().innerText(), /^<img src=x/);
    },
);

chatTest(
    'the page itself cannot run text as script',
    { expect: /Content Security Policy|TrustedHTML|Trusted Type/ },
    async ({ page }) => {
        const blocked = await page.evaluate(() => {
            try {
                document.body.insertAdjacentHTML('beforeend', '<p>x</p>');
                return false;
            } catch {
                return true;
            }
        });
        assert.ok(blocked);
        const html = await readFile(
            new URL('../../src/serve/web/index.html', import.meta.url),
            'utf8',
        );
        assert.doesNotMatch(
            html,
            /<style|\son\w+=|\sstyle=|<script(?![^>]*\ssrc=)|(?:src|href)="(?:https?:)?\/\//,
        );
    },
);

const ERRORS = [
    [
        'context',
        400,
        {
            code: 'context_length_exceeded',
            message: 'too long',
            n_prompt_tokens: 5000,
            n_ctx: 4096,
        },
        /too long for the model\. It has 5,000 tokens; the model’s context holds 4,096\..*new chat/,
    ],
    ['overload', 503, { code: 'overloaded', message: 'queue is full' }, /too much to do/],
    ['server', 500, { code: 'device_lost', message: 'the device was lost' }, /could not finish/],
    ['refusal', 400, { code: null, message: 'top_p is out of range' }, /refused the request/],
];
chatTest('errors in plain words, with another try', { expect: REFUSED }, async ({ page, mock }) => {
    for (const [name, status, error, words] of ERRORS) {
        mock.answer = (body, response) => fail(response, status, error);
        await ask(page, name);
        const answer = await answered(page);
        assert.match(await answer.locator('.error > p').innerText(), words);
        await answer.locator('.error summary').click();
        assert.equal(await answer.locator('.error code').innerText(), error.message);
        mock.answer = (body, response) => say(response, ['Now it works.']);
        await answer.locator('.retry').click();
        await page.waitForFunction(
            () => !document.querySelector('.answer:last-child .error:not([hidden])'),
        );
        await answered(page);
        assert.equal(await text(page), 'Now it works.');
        assert.equal(mock.requests.at(-1).messages.at(-1).content, name);
    }
});

chatTest(
    'an error or a break in mid-stream keeps what came',
    { expect: REFUSED },
    async ({ page, mock }) => {
        mock.answer = async (body, response) => {
            response.writeHead(200, { 'Content-Type': 'text/event-stream' });
            frame(response, { choices: [{ index: 0, delta: { content: 'So far' } }] });
            frame(response, { error: { code: 'context_length_exceeded', message: 'full' } });
            response.end('data: [DONE]\n\n');
        };
        await ask(page, 'a');
        let answer = await answered(page);
        assert.equal(await text(page), 'So far');
        assert.match(await answer.locator('.error > p').innerText(), /too long/);
        mock.answer = async (body, response) => {
            response.writeHead(200, { 'Content-Type': 'text/event-stream' });
            frame(response, { choices: [{ index: 0, delta: { content: 'Half' } }] });
            response.end();
        };
        await ask(page, 'b');
        answer = await answered(page);
        assert.equal(await text(page), 'Half');
        assert.match(await answer.locator('.error > p').innerText(), /connection broke/);
        // Users' turns are joined where nothing stands between them.
        mock.answer = (body, response) => fail(response, 500, { message: 'no' });
        await ask(page, 'c');
        await answered(page);
        await ask(page, 'd');
        await answered(page);
        assert.deepEqual(
            mock.requests.at(-1).messages.map((m) => m.content),
            ['a', 'So far', 'b', 'Half', 'c\n\nd'],
        );
    },
);

chatTest(
    'a server that goes away and comes back',
    { expect: /ERR_|status of/ },
    async ({ page, mock }) => {
        await mock.close();
        await ask(page, 'Are you there?');
        const answer = await answered(page);
        assert.match(await answer.locator('.error > p').innerText(), /No connection to the server/);
        await page.waitForSelector('#dot[data-state="away"]');
        assert.match(await page.innerText('#notice'), /No connection/);
        await mock.listen(mock.port);
        await page.waitForSelector('#dot[data-state="ready"]');
        await page.click('.retry');
        await page.waitForFunction(() =>
            /Hello/.test(document.querySelector('.answer .text').textContent),
        );
    },
);

chatTest(
    'a model that loads',
    {
        expect: REFUSED,
        ready: false,
        before: (mock) => {
            mock.loading = true;
        },
    },
    async ({ page, mock }) => {
        await page.waitForSelector('#dot[data-state="loading"]');
        assert.match(await page.innerText('#notice'), /loading/);
        await page.fill('#input', 'early');
        assert.ok(await page.isDisabled('#send'));
        await page.press('#input', 'Enter');
        assert.equal(await page.inputValue('#input'), 'early');
        mock.loading = false;
        await page.waitForSelector('#dot[data-state="ready"]');
        await page.press('#input', 'Enter');
        await answered(page);
        assert.equal(await text(page), 'Hello.');
    },
);

chatTest(
    'a server with a key',
    {
        expect: REFUSED,
        ready: false,
        before: (mock) => {
            mock.key = 's3cret';
        },
    },
    async ({ page, mock, context }) => {
        for (const key of ['wrong', 's3cret']) {
            await page.waitForSelector('#ask-key[open]');
            await page.fill('#ask-key input', key);
            await page.press('#ask-key input', 'Enter');
            if (key === 'wrong')
                await page.waitForFunction(() =>
                    /not accepted/.test(document.querySelector('#key-note').textContent),
                );
        }
        await page.waitForSelector('#dot[data-state="ready"]');
        assert.equal(await page.locator('dialog[open]').count(), 0);
        await ask(page, 'Hi');
        await answered(page);
        assert.equal(await text(page), 'Hello.');
        await page.reload();
        await page.waitForSelector('#dot[data-state="ready"]');
        await page.click('#open-settings');
        const [download] = await Promise.all([
            page.waitForEvent('download'),
            page.click('#export'),
        ]);
        assert.doesNotMatch(await readFile(await download.path(), 'utf8'), /s3cret/);
        (void context, mock);
    },
);

chatTest('settings go with each request and survive a reload', {}, async ({ page, mock }) => {
    const set = { temperature: '0.25', top_p: '0.9', top_k: '20', max_tokens: '64', seed: '7' };
    await page.click('#open-settings');
    assert.equal(await page.getAttribute('#settings [name=temperature]', 'placeholder'), '0.8');
    await page.fill('#settings [name=system]', 'Be brief.');
    for (const [name, value] of Object.entries(set))
        await page.fill(`#settings [name=${name}]`, value);
    await page.press('#settings [name=seed]', 'Escape');
    await page.reload();
    await page.waitForSelector('#dot[data-state="ready"]');
    await ask(page, 'Hi');
    await answered(page);
    const { model, stream, stream_options: options, messages, ...sampling } = mock.requests[0];
    assert.deepEqual(sampling, {
        temperature: 0.25,
        top_p: 0.9,
        top_k: 20,
        max_tokens: 64,
        seed: 7,
    });
    assert.deepEqual(messages[0], { role: 'system', content: 'Be brief.' });
    await page.click('#open-settings');
    await page.fill('#settings [name=top_p]', '7');
    await page.press('#settings [name=top_p]', 'Tab'); // out of range: not taken
    await page.fill('#settings [name=seed]', '');
    await page.press('#settings [name=seed]', 'Escape');
    await ask(page, 'Again');
    await answered(page);
    assert.equal(mock.requests[1].top_p, 0.9);
    assert.equal('seed' in mock.requests[1], false);
    (void model, stream, options);
});

chatTest('several chats: kept, renamed, deleted, brought back', {}, async ({ page, mock }) => {
    mock.answer = (body, response) => say(response, [`about ${body.messages.at(-1).content}`]);
    for (const name of ['cats', 'dogs']) {
        await page.click('#new-chat');
        await ask(page, name);
        await answered(page);
    }
    const titles = () => page.locator('#chats .title').allInnerTexts();
    assert.deepEqual(await titles(), ['dogs', 'cats']);
    await page.reload();
    await page.waitForSelector('#dot[data-state="ready"]');
    assert.deepEqual(await titles(), ['dogs', 'cats']);
    assert.equal(await text(page), 'about dogs');
    await page.click('#chats .title:text-is("cats")');
    assert.equal(await text(page), 'about cats');
    await page.click('#chats .on .rename');
    await page.keyboard.type('Felines');
    await page.keyboard.press('Enter');
    assert.deepEqual(await titles(), ['dogs', 'Felines']);
    await page.click('#chats .on .drop');
    assert.deepEqual(await titles(), ['dogs']);
    await page.click('#toast button');
    assert.deepEqual((await titles()).sort(), ['Felines', 'dogs']);
    assert.equal(await text(page), 'about cats');
    await page.click('#chats .on .drop');
    await page.reload();
    await page.waitForSelector('#dot[data-state="ready"]');
    assert.deepEqual(await titles(), ['dogs']);
});

chatTest('an answer goes on while another chat is looked at', {}, async ({ page, mock }) => {
    mock.answer = (body, response) => say(response, Array(30).fill('tick '), { delay: 20 });
    await ask(page, 'slow');
    await page.waitForFunction(() => /tick/.test(document.querySelector('.answer')?.textContent));
    await page.click('#new-chat');
    assert.ok(await page.isVisible('#welcome'));
    assert.equal(await page.locator('#chats .busy').count(), 1);
    await page.waitForSelector('#chats:not(:has(.busy))');
    await page.click('#chats .title');
    assert.equal((await text(page)).split('tick').length - 1, 30);
});

chatTest(
    'a chat that is deleted while it is answered stays deleted',
    {},
    async ({ page, mock }) => {
        let closed = false;
        mock.answer = async (body, response) => {
            response.on('close', () => {
                closed = true;
            });
            await say(response, Array(500).fill('word '), { delay: 10 });
        };
        await ask(page, 'Go');
        await page.waitForFunction(() =>
            /word/.test(document.querySelector('.answer')?.textContent),
        );
        await page.click('#chats .on .drop');
        await page.waitForSelector('#welcome');
        await sleep(300);
        assert.ok(closed, 'the request was ended');
        await page.reload();
        await page.waitForSelector('#dot[data-state="ready"]');
        assert.equal(await page.locator('#chats li').count(), 0);
    },
);

chatTest('messages that are shown stay the same elements', {}, async ({ page }) => {
    await ask(page, 'one');
    await answered(page);
    await page.evaluate(() => {
        window.first = [...document.querySelectorAll('#thread > *')];
    });
    await ask(page, 'two');
    await answered(page);
    const same = () =>
        page.evaluate(() =>
            window.first.every((el, i) => el === document.querySelector('#thread').children[i]),
        );
    assert.ok(await same());
    await page.click('#new-chat');
    await page.click('#chats .title');
    assert.equal(await page.locator('#thread > *').count(), 4);
});

chatTest('a reload in the middle of an answer keeps what came', {}, async ({ page, mock }) => {
    mock.answer = (body, response) => say(response, Array(500).fill('word '), { delay: 10 });
    await ask(page, 'Go');
    await page.waitForFunction(() =>
        /word word/.test(document.querySelector('.answer')?.textContent),
    );
    await page.reload();
    assert.match(await text(page), /^(word ?)+$/);
    assert.match(await page.innerText('.stats'), /interrupted/);
});

chatTest('export and import', {}, async ({ page, mock, context }) => {
    mock.answer = (body, response) => say(response, ['**kept**']);
    await ask(page, 'Remember this');
    await answered(page);
    await page.click('#open-settings');
    const [download] = await Promise.all([page.waitForEvent('download'), page.click('#export')]);
    const path = await download.path();
    const file = JSON.parse(await readFile(path, 'utf8'));
    assert.equal(file.format, '1bit-chats');
    assert.equal(file.chats[0].messages[1].content, '**kept**');
    await page.evaluate(() => localStorage.clear());
    await page.reload();
    await page.waitForSelector('#dot[data-state="ready"]');
    assert.equal(await page.locator('#chats li').count(), 0);
    await page.setInputFiles('#file', path);
    await page.click('#chats .title');
    assert.equal(await page.innerText('.answer strong'), 'kept');
    for (const bad of [
        'nonsense',
        '{"format":"1bit-chats","version":1,"chats":[{"id":"../x","messages":[]}]}',
        '{"format":"1bit-chats","version":1,"chats":[{"id":"a","messages":[{"role":"user","content":5}]}]}',
    ]) {
        await page.setInputFiles('#file', {
            name: 'x.json',
            mimeType: 'application/json',
            buffer: Buffer.from(bad),
        });
        await page.waitForFunction(() =>
            /This file/.test(document.querySelector('#toast').textContent),
        );
        await page.evaluate(() => {
            document.querySelector('#toast span').textContent = '';
        });
    }
    assert.equal(await page.locator('#chats li').count(), 1);
    void context;
});

chatTest('damaged storage does no harm', {}, async ({ page }) => {
    await page.evaluate(() => {
        localStorage.setItem('1bit.chat.a', '{');
        localStorage.setItem('1bit.chat.b', '{"id":"b","messages":[null]}');
        localStorage.setItem('1bit.settings', '[1]');
        localStorage.setItem('1bit.theme', 'purple');
    });
    await page.reload();
    await page.waitForSelector('#dot[data-state="ready"]');
    await ask(page, 'Hi');
    await answered(page);
    assert.equal(await text(page), 'Hello.');
});

for (const scheme of ['dark', 'light']) {
    chatTest(
        `${scheme}, as the system has it, or as chosen`,
        { colorScheme: scheme },
        async ({ page }) => {
            const isDark = () =>
                page.evaluate(() => {
                    const [r, g, b] = getComputedStyle(document.body)
                        .backgroundColor.match(/[\d.]+/g)
                        .map(Number);
                    return r + g + b < 384;
                });
            assert.equal(await isDark(), scheme === 'dark');
            await page.click('#theme');
            assert.equal(await isDark(), scheme !== 'dark');
            await page.reload();
            assert.equal(await isDark(), scheme !== 'dark');
        },
    );
}

chatTest(
    'a phone of 375 px',
    { viewport: { width: 375, height: 700 }, hasTouch: true },
    async ({ page, mock }) => {
        const wide = `| ${'column | '.repeat(12)}\n|${'---|'.repeat(12)}\n| ${'x | '.repeat(12)}`;
        mock.answer = (body, response) =>
            say(response, [
                '# T\n\n```c\n' + 'long '.repeat(60) + '\n```\n\n',
                wide,
                '\n\n' + 'W'.repeat(300),
                '\n\nhttps://x.test/' + 'a'.repeat(300),
            ]);
        await ask(page, 'x'.repeat(400));
        await answered(page);
        const fits = () =>
            page.evaluate(() => {
                const scroll = document.querySelector('#scroll');
                return (
                    document.documentElement.scrollWidth <= innerWidth &&
                    scroll.scrollWidth <= scroll.clientWidth
                );
            });
        assert.ok(await fits());
        for (const id of ['#menu', '#open-settings', '#send', '#input'])
            assert.ok(await page.isVisible(id), id);
        const box = await page.locator('#composer').boundingBox();
        assert.ok(box.x >= 0 && box.x + box.width <= 375 && box.y + box.height <= 700);
        assert.ok(!(await page.isVisible('#side')));
        await page.click('#menu');
        assert.ok(await page.isVisible('#new-chat'));
        assert.ok(await fits());
        await page.click('#new-chat');
        assert.ok(!(await page.isVisible('#side')));
        await page.click('#open-settings');
        assert.ok(await fits());
    },
);

chatTest('a window made narrow closes the list of chats', {}, async ({ page }) => {
    assert.ok(await page.isVisible('#side'));
    await page.setViewportSize({ width: 380, height: 700 });
    await page.waitForFunction(() => document.body.classList.contains('side-closed'));
    assert.ok(!(await page.isVisible('#side')));
    await page.setViewportSize({ width: 1000, height: 700 });
    await page.waitForFunction(() => !document.body.classList.contains('side-closed'));
});

chatTest(
    'the view follows the text until the user goes up',
    { viewport: { width: 900, height: 500 } },
    async ({ page, mock }) => {
        mock.answer = (body, response) => say(response, Array(120).fill('line\n\n'), { delay: 10 });
        await ask(page, 'Go');
        const at = () =>
            page.evaluate(() => {
                const s = document.querySelector('#scroll');
                return { top: s.scrollTop, left: s.scrollHeight - s.clientHeight - s.scrollTop };
            });
        await page.waitForFunction(() => document.querySelectorAll('.answer p').length > 40);
        assert.ok((await at()).left < 60);
        await page.mouse.move(450, 200);
        await page.mouse.wheel(0, -300);
        await page.waitForTimeout(150);
        const { top } = await at();
        await page.waitForTimeout(250);
        assert.equal((await at()).top, top);
        await page.click('#jump');
        await answered(page);
        assert.ok((await at()).left < 60);
    },
);

chatTest(
    'keys: Shift+Enter, paste of many lines, a very long message',
    {},
    async ({ page, mock }) => {
        await page.focus('#input');
        await page.keyboard.type('one');
        await page.keyboard.press('Shift+Enter');
        await page.keyboard.insertText('two\nthree\n\tfour');
        const height = (await page.locator('#input').boundingBox()).height;
        assert.ok(height > 80, `the box grows (${height})`);
        await page.keyboard.press('Enter');
        await answered(page);
        assert.equal(mock.requests[0].messages[0].content, 'one\ntwo\nthree\n\tfour');
        assert.equal(await page.inputValue('#input'), '');
        await page.press('#input', 'Enter'); // nothing to send
        const long = 'lorem ipsum '.repeat(20000);
        await ask(page, long);
        await answered(page);
        assert.equal(mock.requests.length, 2);
        assert.equal(mock.requests[1].messages[2].content, long);
        assert.ok((await page.locator('.user .text').last().boundingBox()).height < 300);
        await page.locator('.more:visible').click();
        assert.ok((await page.locator('.user .text').last().boundingBox()).height > 300);
    },
);

chatTest('every control has a name, and dialogs give the focus back', {}, async ({ page }) => {
    await ask(page, 'Hi');
    await answered(page);
    const nameless = await page.evaluate(() =>
        [...document.querySelectorAll('button, input, textarea, select')]
            .filter(
                (el) =>
                    !(el.getAttribute('aria-label') || el.labels?.length || el.textContent.trim()),
            )
            .map((el) => el.outerHTML)
            .filter((html) => !html.includes('hidden')),
    );
    assert.deepEqual(nameless, []);
    assert.equal(await page.getAttribute('#thread', 'aria-live'), 'polite');
    await page.focus('#open-settings');
    await page.keyboard.press('Enter');
    await page.waitForSelector('#settings[open]');
    await page.keyboard.press('Escape');
    assert.equal(await page.evaluate(() => document.activeElement.id), 'open-settings');
});

const PICTURES = fileURLToPath(new URL('../data/images/', import.meta.url));

chatTest('pictures go with the message and stay', { before: (mock) => (mock.pictures = true) }, async ({ page, mock }) => {
    await page.setInputFiles('#pictures', [`${PICTURES}rgb.png`, `${PICTURES}rgb.jpg`]);
    await page.waitForFunction(() => document.querySelectorAll('#attached img').length === 2);
    await page.click('#attached li:nth-child(2) .drop');
    assert.equal(await page.locator('#attached img').count(), 1);
    await ask(page, 'What is it?');
    await answered(page);
    const { content } = mock.requests[0].messages.at(-1);
    const png = await readFile(`${PICTURES}rgb.png`);
    assert.deepEqual(content, [
        { type: 'image_url', image_url: { url: `data:image/png;base64,${png.toString('base64')}` } },
        { type: 'text', text: 'What is it?' },
    ]);
    assert.equal(await page.locator('#attached img').count(), 0);
    await page.reload();
    await page.waitForSelector('.user .pictures img');
    await ask(page, 'And now?');
    await answered(page);
    assert.equal(mock.requests[1].messages[0].content.length, 2);
    assert.equal(mock.requests[1].messages[2].content, 'And now?');
});

chatTest('a large picture is made smaller, a picture alone is a message', { before: (mock) => (mock.pictures = true) }, async ({ page, mock }) => {
    const url = await page.evaluate(() => {
        const canvas = document.createElement('canvas');
        canvas.width = 4000;
        canvas.height = 1000;
        canvas.getContext('2d').fillRect(10, 10, 3000, 500);
        return canvas.toDataURL('image/png');
    });
    const buffer = Buffer.from(url.split(',')[1], 'base64');
    await page.setInputFiles('#pictures', { name: 'large.png', mimeType: 'image/png', buffer });
    await page.waitForSelector('#attached img');
    await page.click('#send');
    await answered(page);
    const { content } = mock.requests[0].messages[0];
    assert.equal(content.length, 1);
    const size = await page.evaluate(async (data) => {
        const img = new Image();
        img.src = data;
        await img.decode();
        return [img.width, img.height];
    }, content[0].image_url.url);
    assert.deepEqual(size, [1536, 384]);
});

chatTest('what is no picture is told', { before: (mock) => (mock.pictures = true) }, async ({ page }) => {
    await page.setInputFiles('#pictures', { name: 'x.png', mimeType: 'image/png', buffer: Buffer.from('no') });
    await page.waitForFunction(() => document.querySelector('#toast').textContent.includes('x.png'));
    assert.equal(await page.locator('#attached img').count(), 0);
    assert.ok(await page.locator('#send').isDisabled());
});

chatTest('no pictures for a model that reads none', {}, async ({ page }) => {
    assert.ok(await page.locator('#attach').isHidden());
});
