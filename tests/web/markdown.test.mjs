// markdown.js in a browser: what becomes of each construct, of hostile text and of hostile sizes.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { executablePath, launch, openPage } from './browser.mjs';
import { startMock } from './mock.mjs';

const skip = executablePath ? false : 'Chromium is not installed';
let browser, mock, page, done;

before(async () => {
    if (skip) return;
    [browser, mock] = await Promise.all([launch(), startMock()]);
    ({ page, done } = await openPage(browser, mock.url));
});
after(async () => {
    if (skip) return;
    try {
        await done();
    } finally {
        // or node would wait for them for ever
        await browser.close();
        await mock.close();
    }
});

const render = (text) =>
    page.evaluate(async (source) => {
        const { MarkdownView } = await import('./markdown.js');
        const el = document.createElement('div');
        new MarkdownView(el).update(source);
        return el.innerHTML;
    }, text);

const A = 'target="_blank" rel="noopener noreferrer"';
const CASES = [
    ['plain', 'one\ntwo\n\nthree', '<p>one<br>two</p><p>three</p>'],
    ['headings start at h3, below those of the page', '# A\n###### B #', '<h3>A</h3><h6>B</h6>'],
    ['no heading without a space', '#hash', '<p>#hash</p>'],
    [
        'emphasis',
        '*a* **b** ***c*** _d_ ~~e~~',
        '<p><em>a</em> <strong>b</strong> ' +
            '<em><strong>c</strong></em> <em>d</em> <del>e</del></p>',
    ],
    ['nested emphasis', '**a *b* c**', '<p><strong>a <em>b</em> c</strong></p>'],
    [
        'stars that are none',
        '2 * 3 * 4 and snake_case_name and **open',
        '<p>2 * 3 * 4 and snake_case_name and **open</p>',
    ],
    ['escapes', '\\*a\\* \\<b>', '<p>*a* &lt;b&gt;</p>'],
    [
        'code spans',
        'a `x < y` b `` ` `` c ` d',
        '<p>a <code>x &lt; y</code> b <code>`</code> c ` d</p>',
    ],
    [
        'no marks inside code spans',
        '`*a*` *`b`*',
        '<p><code>*a*</code> <em><code>b</code></em></p>',
    ],
    [
        'link',
        '[a *b*](https://x.test/p_(q)?r=1 "t")',
        `<p><a href="https://x.test/p_(q)?r=1" ${A}>a <em>b</em></a></p>`,
    ],
    [
        'bare address',
        'see https://x.test/a_b_c, or (https://x.test).',
        `<p>see <a href="https://x.test/a_b_c" ${A}>https://x.test/a_b_c</a>, or (<a href="https://x.test/" ${A}>https://x.test</a>).</p>`,
    ],
    [
        'address in angles',
        '<https://x.test/>',
        `<p><a href="https://x.test/" ${A}>https://x.test/</a></p>`,
    ],
    [
        'a picture is a link',
        '![cat](https://x.test/c.png)',
        `<p><a href="https://x.test/c.png" ${A}>cat</a></p>`,
    ],
    ['brackets that are no link', '[1] and [x](no) and [y', '<p>[1] and [x](no) and [y</p>'],
    ['rule', 'a\n\n---\n\nb', '<p>a</p><hr><p>b</p>'],
    ['list', '- a\n- b\n  - c\n- d', '<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>'],
    ['numbers', '3. a\n4. b', '<ol start="3"><li>a</li><li>b</li></ol>'],
    [
        'bullets in numbers',
        '1. a\n   - x\n   - y\n2. b',
        '<ol><li>a<ul><li>x</li><li>y</li></ul></li><li>b</li></ol>',
    ],
    ['loose list', '- a\n\n- b', '<ul><li><p>a</p></li><li><p>b</p></li></ul>'],
    ['list behind a paragraph', 'a:\n- b\n\nc', '<p>a:</p><ul><li>b</li></ul><p>c</p>'],
    [
        'tasks',
        '- [x] a\n- [ ] b',
        '<ul><li class="task"><input type="checkbox" disabled="" aria-label="done">a</li>' +
            '<li class="task"><input type="checkbox" disabled="" aria-label="not done">b</li></ul>',
    ],
    ['quote', '> a\n> - b\n\nc', '<blockquote><p>a</p><ul><li>b</li></ul></blockquote><p>c</p>'],
    [
        'table',
        '| a | b |\n|:-:|--:|\n| `x|y` | 1 |\n| z |',
        '<div class="table" tabindex="0"><table><thead><tr><th class="mid">a</th>' +
            '<th class="end">b</th></tr></thead><tbody><tr><td class="mid"><code>x|y</code></td><td class="end">1</td></tr>' +
            '<tr><td class="mid">z</td></tr></tbody></table></div>',
    ],
    ['line break of a cell', 'a<br>b', '<p>a<br>b</p>'],
    [
        'HTML is text',
        '<b>x</b> &amp; <script>1</script>',
        '<p>&lt;b&gt;x&lt;/b&gt; &amp;amp; &lt;script&gt;1&lt;/script&gt;</p>',
    ],
];
for (const [name, source, html] of CASES) {
    test(`markdown: ${name}`, { skip }, async () => assert.equal(await render(source), html));
}

test('markdown: code blocks keep their text and get colours', { skip }, async () => {
    const source = 'def f(x):\n    return "a" + 1  # <b>';
    for (const text of [
        '```python\n' + source + '\n```',
        '~~~python\n' + source,
        '- a\n\n  ```python\n' + source.replace(/^/gm, '  ') + '\n  ```',
    ]) {
        const found = await page.evaluate(async (t) => {
            const { MarkdownView } = await import('./markdown.js');
            const el = document.createElement('div');
            new MarkdownView(el).update(t);
            const code = el.querySelector('pre code');
            return {
                text: code.textContent,
                label: el.querySelector('.code-bar span').textContent,
                spans: [...code.children].map((c) => `${c.className}:${c.textContent}`),
            };
        }, text);
        assert.equal(found.text, source);
        assert.equal(found.label, 'python');
        assert.deepEqual(found.spans, [
            'c-word:def',
            'c-call:f',
            'c-word:return',
            'c-string:"a"',
            'c-number:1',
            'c-comment:# <b>',
        ]);
    }
});

test('markdown: no language loses or adds a character', { skip }, async () => {
    const text =
        '#include <a.h>\n/* c */ int x = 0x1F; // d\n\'a\' "b\\"" `t` <p class="q">\n-- e\n"""f"""\n<!-- g -->\n\'lifetime\n$x {}';
    const wrong = await page.evaluate(async (source) => {
        const { MarkdownView } = await import('./markdown.js');
        const bad = [];
        for (const language of [
            'c',
            'js',
            'python',
            'rust',
            'go',
            'bash',
            'sql',
            'json',
            'yaml',
            'css',
            'html',
            'constructor',
            '',
        ]) {
            const el = document.createElement('div');
            new MarkdownView(el).update('```' + language + '\n' + source + '\n```');
            if (el.querySelector('code').textContent !== source) bad.push(language);
        }
        return bad;
    }, text);
    assert.deepEqual(wrong, []);
});

test('markdown: a text that grows ends as the whole does', { skip }, async () => {
    const whole = CASES.map(([, source]) => source).join('\n\n') + '\n\n```c\nint x;\n```\n\nend';
    const same = await page.evaluate(async (text) => {
        const { MarkdownView } = await import('./markdown.js');
        const [grown, once] = [document.createElement('div'), document.createElement('div')];
        const view = new MarkdownView(grown);
        for (let n = 1; n <= text.length; n++) view.update(text.slice(0, n));
        new MarkdownView(once).update(text);
        return grown.innerHTML === once.innerHTML;
    }, whole);
    assert.ok(same);
});

test('markdown: blocks that did not change stay the same elements', { skip }, async () => {
    const kept = await page.evaluate(async () => {
        const { MarkdownView } = await import('./markdown.js');
        const el = document.createElement('div');
        const view = new MarkdownView(el);
        view.update('first\n\nsec');
        const first = el.firstChild;
        view.update('first\n\nsecond');
        return first === el.firstChild && el.textContent === 'firstsecond';
    });
    assert.ok(kept);
});

const HOSTILE = [
    '<img src=x onerror="window.pwned=1">',
    '<script>window.pwned=1</script>',
    '<svg onload=window.pwned=1>',
    '[x](javascript:window.pwned=1)',
    '[x](JaVaScRiPt:window.pwned=1)',
    '[x](<java\tscript:window.pwned=1>)',
    '[x](data:text/html,<script>window.pwned=1</script>)',
    '[x](vbscript:x)',
    '![x](javascript:window.pwned=1)',
    '<javascript:window.pwned=1>',
    '[x](/v1/models)',
    '[x](//evil.test/)',
    '<a href="javascript:window.pwned=1">x</a>',
    '```"><img src=x onerror=window.pwned=1>\ncode\n```',
    '```html\n<script>window.pwned=1</script>\n```',
    '| <img src=x onerror=window.pwned=1> | b |\n|---|---|\n| <script>window.pwned=1</script> | [x](javascript:1) |',
    '- <iframe src="javascript:window.pwned=1">',
    '# <style>*{display:none}</style>',
    '> <form action=//evil.test><input name=a>',
    '[a](https://x.test/" onmouseover="window.pwned=1)',
    '<https://x.test/"onclick=window.pwned=1>',
    '**<b onclick=window.pwned=1>**',
    '`<img src=x onerror=window.pwned=1>`',
    '[![x](https://evil.test/a.png)](https://evil.test)',
    '<br onload=window.pwned=1>',
    '<br/><img src=x onerror=window.pwned=1>',
    '\\<img src=x onerror=window.pwned=1>',
    '[a [b](https://x.test) c](https://y.test)',
    '{{constructor.constructor("window.pwned=1")()}}',
];

test('markdown: hostile text is inert', { skip }, async () => {
    for (const text of HOSTILE) {
        const bad = await page.evaluate(async (source) => {
            const { MarkdownView } = await import('./markdown.js');
            const el = document.createElement('div');
            document.body.append(el);
            new MarkdownView(el).update(source);
            const tags = new Set([
                'P',
                'A',
                'EM',
                'STRONG',
                'DEL',
                'CODE',
                'PRE',
                'BR',
                'HR',
                'H3',
                'H4',
                'H5',
                'H6',
                'UL',
                'OL',
                'LI',
                'TABLE',
                'THEAD',
                'TBODY',
                'TR',
                'TH',
                'TD',
                'BLOCKQUOTE',
                'DIV',
                'SPAN',
                'BUTTON',
                'INPUT',
            ]);
            const found = [];
            for (const node of el.querySelectorAll('*')) {
                if (!tags.has(node.tagName)) found.push(node.tagName);
                for (const a of node.attributes)
                    if (/^on|^style$|^src/.test(a.name)) found.push(a.name);
                if (node.tagName === 'A') {
                    if (!/^(https?:|mailto:)/.test(node.getAttribute('href')))
                        found.push(node.getAttribute('href'));
                    if (!/noopener/.test(node.rel)) found.push('rel');
                    if (node.querySelector('a')) found.push('nested link');
                }
                if (node.tagName !== 'A' || !node.href.startsWith('http')) node.click();
            }
            el.remove();
            return found;
        }, text);
        assert.deepEqual(bad, [], text);
    }
    assert.equal(await page.evaluate(() => window.pwned), undefined);
});

test('markdown: hostile sizes take no long time', { skip }, async () => {
    const n = 100000;
    const texts = {
        stars: '*'.repeat(n),
        openers: '*a '.repeat(n / 3),
        both: '*a* '.repeat(n / 4),
        mixed: '*a _b ~~c '.repeat(n / 10),
        nest: '**a '.repeat(n / 8) + 'b** '.repeat(n / 8),
        brackets: '['.repeat(n),
        links: '[a]('.repeat(n / 4),
        closed: '[a](b '.repeat(n / 6) + ')',
        ticks: '`a``b'.repeat(n / 5),
        quotes: '>'.repeat(n),
        deepQuotes: '> '.repeat(n / 2) + 'x',
        lists: Array.from({ length: 400 }, (_, i) => ' '.repeat(i * 2) + '- a').join('\n'),
        table: '|a'.repeat(5000) + '\n' + '|-'.repeat(5000) + '\n' + '|x\n'.repeat(5000),
        pipes: '|'.repeat(n) + '\n' + '|-'.repeat(n / 2),
        address: 'https://x.test/' + ')'.repeat(n),
        rules: '- '.repeat(n) + 'x',
        hashes: '#'.repeat(n),
        string: '```js\n' + '"\\'.repeat(15000) + '\n```',
        comment: '```c\n' + '/*'.repeat(15000) + '\n```',
        angle: '<https://'.repeat(n / 9),
        escapes: '\\'.repeat(n),
        lines: '\n'.repeat(n),
        items: '- a\n'.repeat(n / 10),
        digits: '```c\n' + '1_'.repeat(15000) + '\n```',
        title: '[a](b "' + '"'.repeat(n),
    };
    for (const [name, text] of Object.entries(texts)) {
        const work = page.evaluate(async (source) => {
            const { MarkdownView } = await import('./markdown.js');
            const el = document.createElement('div');
            const begun = performance.now();
            new MarkdownView(el).update(source);
            return performance.now() - begun;
        }, text);
        const ms = await Promise.race([work, sleep(10000, Infinity)]);
        if (ms === Infinity) await browser.close(); // it would hang every test behind it
        assert.ok(ms < 2000, `${name}: ${ms.toFixed(0)} ms`);
    }
});
