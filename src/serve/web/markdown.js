/* Markdown as models write it -> DOM nodes.
 *
 * Text becomes text nodes and a fixed set of elements; no string is ever parsed as HTML, so nothing
 * a model writes can become markup. Pictures become links: the page asks no other host for
 * anything.
 *
 * A reply is rendered again with each token, so the source is cut into top-level blocks (a linear
 * scan of lines) and only blocks whose source changed are built anew. Work is linear in the length
 * of a block: every look-back is bounded, since the text is untrusted. */

const MAX_DEPTH = 16; /* nested quotes, lists and emphasis; deeper ones stay plain text */
const MAX_OPENERS = 32; /* emphasis marks and brackets that wait for their partner */
const MAX_COLOURED = 40000; /* characters of a code block; longer ones stay in one colour */

function make(tag, className, ...children) {
    const el = document.createElement(tag);
    if (className) el.className = className;
    return addAll(el, children);
}

/* Not append(...nodes): there may be more of them than a call takes arguments. */
function addAll(el, nodes) {
    for (const node of nodes) el.append(node);
    return el;
}

/* --- blocks ---------------------------------------------------------------------------------- */

const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*)$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const TABLE_RULE = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

const isBlank = (line) => line.trim() === '';
const indentOf = (line) => line.length - line.trimStart().length;

function startsTable(lines, i) {
    return (
        i + 1 < lines.length &&
        lines[i].includes('|') &&
        lines[i + 1].includes('-') &&
        TABLE_RULE.test(lines[i + 1]) &&
        cellsOf(lines[i]).length === cellsOf(lines[i + 1]).length
    );
}

/* May this line end a paragraph? */
function startsBlock(lines, i) {
    const line = lines[i];
    const item = ITEM.exec(line);
    return (
        FENCE.test(line) ||
        HEADING.test(line) ||
        RULE.test(line) ||
        QUOTE.test(line) ||
        (item && item[0].length < line.length) ||
        startsTable(lines, i)
    );
}

/* The index behind the block that starts at line i, and its kind. */
function blockEnd(lines, i) {
    const n = lines.length;
    let end = i + 1;
    const fence = FENCE.exec(lines[i]);
    if (fence) {
        const close = new RegExp(`^ {0,3}\\${fence[2][0]}{${fence[2].length},}[ \\t]*$`);
        while (end < n && !close.test(lines[end])) end++;
        return { kind: 'code', end: Math.min(end + 1, n) };
    }
    if (HEADING.test(lines[i])) return { kind: 'heading', end };
    if (RULE.test(lines[i])) return { kind: 'rule', end };
    if (QUOTE.test(lines[i])) {
        while (
            end < n &&
            !isBlank(lines[end]) &&
            (QUOTE.test(lines[end]) || !startsBlock(lines, end))
        )
            end++;
        return { kind: 'quote', end };
    }
    const item = ITEM.exec(lines[i]);
    if (item) return { kind: 'list', end: listEnd(lines, i, item) };
    if (startsTable(lines, i)) {
        end = i + 2;
        while (end < n && !isBlank(lines[end]) && lines[end].includes('|')) end++;
        return { kind: 'table', end };
    }
    while (end < n && !isBlank(lines[end]) && !startsBlock(lines, end)) end++;
    return { kind: 'text', end };
}

const isOrdered = (marker) => /\d/.test(marker);

/* A list goes on over items of its sort, indented lines, and blank lines before either. */
function listEnd(lines, from, first) {
    const margin = first[1].length;
    let end = from + 1,
        last = end,
        fence = null;
    for (; end < lines.length; end++) {
        const line = lines[end];
        if (isBlank(line)) continue;
        if (fence) {
            /* an item's code may stand at the margin */
            if (line.trim().startsWith(fence) && !line.trim().slice(fence.length).trim())
                fence = null;
            last = end + 1;
            continue;
        }
        const item = ITEM.exec(line);
        const indent = indentOf(line);
        const sibling = item && indent <= margin + 1 && isOrdered(item[2]) === isOrdered(first[2]);
        const inside = indent > margin;
        const lazy = last === end && !startsBlock(lines, end);
        if (RULE.test(line) && !inside) break;
        if (!sibling && !inside && !lazy) break;
        const open = FENCE.exec(line.trim());
        if (open) fence = open[2];
        last = end + 1;
    }
    return last;
}

/* Top-level blocks: [{kind, lines}]. */
function splitBlocks(lines) {
    const blocks = [];
    for (let i = 0; i < lines.length;) {
        if (isBlank(lines[i])) {
            i++;
            continue;
        }
        const { kind, end } = blockEnd(lines, i);
        blocks.push({ kind, lines: lines.slice(i, end) });
        i = end;
    }
    return blocks;
}

/* Cells of a table's row; a bar behind a backslash or inside backticks does not part cells. */
function cellsOf(line) {
    const cells = [];
    let cell = '',
        inCode = false;
    for (const part of line.trim().split(/(\\\||`|\|)/)) {
        if (part === '\\|') {
            cell += '|';
        } else if (part === '|' && !inCode) {
            cells.push(cell.trim());
            cell = '';
        } else {
            if (part === '`') inCode = !inCode;
            cell += part;
        }
    }
    cells.push(cell.trim());
    if (cells.length > 1 && cells[0] === '') cells.shift();
    if (cells.length > 1 && cells[cells.length - 1] === '') cells.pop();
    return cells;
}

function buildTable(lines) {
    const heads = cellsOf(lines[0]);
    const aligns = cellsOf(lines[1]).map((c) => {
        const left = c.startsWith(':'),
            right = c.endsWith(':');
        return left && right ? 'mid' : right ? 'end' : '';
    });
    /* Short rows are not filled up: a wide head must not multiply with many rows. */
    const row = (cells, tag) =>
        addAll(
            make('tr', ''),
            cells.map((cell, i) => addAll(make(tag, aligns[i] || ''), inline(cell))),
        );
    const body = lines.slice(2).map((line) => row(cellsOf(line).slice(0, heads.length), 'td'));
    const table = make(
        'table',
        '',
        make('thead', '', row(heads, 'th')),
        addAll(make('tbody', ''), body),
    );
    const box = make('div', 'table', table);
    box.tabIndex = 0; /* wide tables scroll: by keyboard too */
    return box;
}

function buildCode(lines) {
    const [, , mark, info] = FENCE.exec(lines[0]);
    const last = lines[lines.length - 1].trim();
    const closed =
        lines.length > 1 && last.length >= mark.length && last === mark[0].repeat(last.length);
    const margin = indentOf(lines[0]);
    const text = lines
        .slice(1, closed ? -1 : undefined)
        .map((line) => line.slice(Math.min(margin, indentOf(line))))
        .join('\n');
    const language = (info.trim().split(/[\s{,]/)[0] || '').slice(0, 24);
    const copy = make('button', 'copy-code', 'Copy');
    copy.type = 'button';
    copy.setAttribute('aria-label', 'Copy code');
    const code = make('code', '');
    colour(code, text, language.toLowerCase());
    const pre = make('pre', '', code);
    pre.tabIndex = 0;
    return make(
        'div',
        'code',
        make('div', 'code-bar', make('span', '', language || 'text'), copy),
        pre,
    );
}

function buildList(lines, depth) {
    const first = ITEM.exec(lines[0]);
    const margin = first[1].length;
    const list = make(isOrdered(first[2]) ? 'ol' : 'ul', '');
    const start = parseInt(first[2], 10);
    if (isOrdered(first[2]) && start !== 1) list.start = start;
    let item = null,
        width = 0,
        loose = false,
        blankBefore = false,
        fenced = false;
    const items = [];
    for (const line of lines) {
        const m = fenced ? null : ITEM.exec(line);
        if (m && m[1].length <= margin + 1) {
            width =
                m[0].length > m[1].length + m[2].length + 4
                    ? m[1].length + m[2].length + 1
                    : m[0].length;
            item = [line.slice(width)];
            items.push(item);
            if (blankBefore) loose = true;
        } else {
            item.push(line.slice(Math.min(width, indentOf(line))));
        }
        if (FENCE.test(item[item.length - 1])) fenced = !fenced;
        blankBefore = isBlank(line);
    }
    for (const itemLines of items) {
        const li = make('li', '');
        const task = /^\[([ xX])\] +/.exec(itemLines[0]);
        if (task) {
            const box = make('input', '');
            box.type = 'checkbox';
            box.disabled = true;
            box.checked = task[1] !== ' ';
            box.setAttribute('aria-label', box.checked ? 'done' : 'not done');
            itemLines[0] = itemLines[0].slice(task[0].length);
            li.className = 'task';
            li.append(box);
        }
        for (const block of splitBlocks(itemLines)) {
            /* Text of a tight list stands in the item itself, without a paragraph's margins. */
            if (block.kind === 'text' && !loose) addAll(li, inline(textOf(block.lines)));
            else li.append(build(block, depth + 1));
        }
        list.append(li);
    }
    return list;
}

const textOf = (lines) => lines.map((line) => line.trim()).join('\n');

function build({ kind, lines }, depth = 0) {
    if (depth > MAX_DEPTH) return make('p', '', lines.join('\n'));
    switch (kind) {
        case 'code':
            return buildCode(lines);
        case 'rule':
            return make('hr', '');
        case 'table':
            return buildTable(lines);
        case 'list':
            return buildList(lines, depth);
        case 'heading': {
            const [, marks, text] = HEADING.exec(lines[0]);
            /* The page's own headings are h1 and h2. */
            const title = text.replace(/[ \t]#*[ \t]*$/, '');
            return addAll(make(`h${Math.min(marks.length + 2, 6)}`, ''), inline(title));
        }
        case 'quote': {
            const inner = splitBlocks(lines.map((line) => line.replace(QUOTE, '')));
            return addAll(
                make('blockquote', ''),
                inner.map((block) => build(block, depth + 1)),
            );
        }
        default:
            return addAll(make('p', ''), inline(textOf(lines)));
    }
}

/* --- inline ---------------------------------------------------------------------------------- */

/* What may have a meaning: escape; code, emphasis, brackets; line break; address; end of line. */
const INLINE = new RegExp(
    [
        /\\[!-/:-@[-`{-~]/,
        /`+|\*+|_+|~~|!?\[|\]/,
        /<br ?\/?>/,
        /<(?:https?:\/\/|mailto:)[^\s<>]+>|https?:\/\/[^\s<>"'`]+/,
        /\n/,
    ]
        .map((part) => part.source)
        .join('|'),
    'gi',
);
/* "(address "title")", of bounded length. */
const LINK_TARGET = new RegExp(
    /\((?:<([^<>\n]{0,2000})>|((?:[^\s()]|\([^\s()]{0,500}\)){0,2000}))/.source +
        /(?:[ \t]+(?:"[^"\n]{0,500}"|'[^'\n]{0,500}'))?[ \t]*\)/.source,
    'y',
);

/* An address that may become a link, or null. */
export function safeUrl(text) {
    let url;
    try {
        url = new URL(text);
    } catch {
        return null; /* relative ones would point into this server */
    }
    return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
}

function link(href, children) {
    const a = addAll(make('a', ''), children);
    a.href = href;
    a.target = '_blank';
    a.rel = 'noopener noreferrer';
    return a;
}

function autolink(text, nodes) {
    /* A full stop or a closing bracket behind an address belongs to the sentence. */
    const trailing = text.includes('(') ? '.,;:!?*_~' : '.,;:!?*_~])';
    let end = text.length;
    while (trailing.includes(text[end - 1])) end--;
    const href = safeUrl(text.slice(0, end));
    nodes.push(href ? link(href, [text.slice(0, end)]) : text.slice(0, end));
    return end;
}

/* Where runs of each number of backticks occur last: an opener beyond that has no partner. */
function lastRuns(text) {
    const last = new Map();
    for (const m of text.matchAll(/`+/g)) last.set(m[0].length, m.index);
    return last;
}

const isWord = (c) => c !== undefined && /[\p{L}\p{N}]/u.test(c);
const isSpace = (c) => c === undefined || /\s/.test(c);

/* Text of a paragraph -> nodes. The list holds strings, elements, and openers {mark, n}, which turn
 * into elements when their partner comes and into plain text at the end. */
function inline(text) {
    const nodes = [];
    const openers = []; /* indices into nodes */
    const runs = lastRuns(text);
    const closers = /`+/g;
    const scan = new RegExp(INLINE);
    let at = 0,
        m;
    while ((m = scan.exec(text))) {
        if (m.index > at) nodes.push(text.slice(at, m.index));
        const token = m[0];
        let end = m.index + token.length;
        if (token[0] === '\\') {
            nodes.push(token[1]);
        } else if (token === '\n' || token.startsWith('<b') || token.startsWith('<B')) {
            nodes.push(make('br', ''));
        } else if (token[0] === '`') {
            end = codeSpan(text, m.index, token, runs, closers, nodes);
        } else if (token[0] === '*' || token[0] === '_' || token === '~~') {
            emphasis(text, m.index, token, nodes, openers);
        } else if (token === '[' || token === '![') {
            open(nodes, openers, { mark: '[', text: token });
        } else if (token === ']') {
            end = closeLink(text, end, nodes, openers);
        } else if (token[0] === '<') {
            const href = safeUrl(token.slice(1, -1));
            nodes.push(href ? link(href, [token.slice(1, -1)]) : token);
        } else {
            end = m.index + autolink(token, nodes);
        }
        at = scan.lastIndex = end;
    }
    if (at < text.length) nodes.push(text.slice(at));
    return settle(nodes);
}

function open(nodes, openers, opener) {
    const waits = openers.length < MAX_OPENERS;
    if (waits) openers.push(nodes.length);
    nodes.push(waits ? opener : opener.text || opener.mark.repeat(opener.n));
}

/* Openers without a partner are the text that they were. */
function settle(nodes) {
    const out = [];
    for (const node of nodes) {
        const item = node.mark ? node.text || node.mark.repeat(node.n) : node;
        const last = out.length - 1;
        if (typeof item === 'string' && typeof out[last] === 'string') out[last] += item;
        else out.push(item);
    }
    return out;
}

function codeSpan(text, from, token, runs, closers, nodes) {
    const start = from + token.length;
    if ((runs.get(token.length) ?? -1) >= start) {
        closers.lastIndex = start;
        for (let m; (m = closers.exec(text));) {
            if (m[0].length !== token.length) continue;
            let code = text.slice(start, m.index).replace(/\n/g, ' ');
            if (/^ .*\S.* $/.test(code)) code = code.slice(1, -1);
            nodes.push(make('code', '', code));
            return m.index + token.length;
        }
    }
    nodes.push(token);
    return start;
}

/* A run of * or _ or ~~: closes what it can, and opens with what is left. */
function emphasis(text, from, token, nodes, openers) {
    const mark = token[0];
    const before = text[from - 1],
        after = text[from + token.length];
    const left = !isSpace(after),
        right = !isSpace(before);
    const canOpen = left && (mark !== '_' || !isWord(before));
    const canClose = right && (mark !== '_' || !isWord(after));
    let n = token.length;
    if (n > 3) {
        /* a line of stars, or an attempt at nesting without end */
        nodes.push(token);
        return;
    }
    while (canClose && n) {
        const k = findOpener(mark, nodes, openers);
        if (k < 0) break;
        const index = openers[k],
            opener = nodes[index];
        const used = mark === '~' ? 2 : Math.min(opener.n, n, 2);
        openers.length = k + 1;
        const tag = mark === '~' ? 'del' : used === 2 ? 'strong' : 'em';
        const inner = settle(nodes.splice(index + 1));
        if (inner.length) nodes.push(addAll(make(tag, ''), inner));
        opener.n -= used;
        if (!opener.n) {
            nodes.splice(index, 1);
            openers.pop();
        }
        n -= used;
    }
    if (!n) return;
    if (canOpen) open(nodes, openers, { mark, n });
    else nodes.push(mark.repeat(n));
}

function findOpener(mark, nodes, openers) {
    for (let k = openers.length - 1; k >= 0; k--) {
        const opener = nodes[openers[k]];
        if (opener.mark === mark && nodes.length > openers[k] + 1) return k;
        if (opener.mark === '[') return -1; /* emphasis does not reach out of a link's text */
    }
    return -1;
}

/* "]" at end - 1: a link if "(address)" follows and "[" came before. Returns the index behind. */
function closeLink(text, end, nodes, openers) {
    let k = openers.length - 1;
    while (k >= 0 && nodes[openers[k]].mark !== '[') k--;
    if (k < 0) {
        nodes.push(']');
        return end;
    }
    const index = openers[k];
    LINK_TARGET.lastIndex = end;
    const target = text[end] === '(' ? LINK_TARGET.exec(text) : null;
    const href = target ? safeUrl(target[1] ?? target[2]) : null;
    openers.length = k;
    if (!href) {
        /* what stands there stays readable, address and all */
        nodes[index] = nodes[index].text;
        nodes.push(']');
        return end;
    }
    const inner = settle(nodes.splice(index + 1));
    const a = link(href, inner.length ? inner : [href]);
    for (const nested of a.querySelectorAll('a')) nested.replaceWith(...nested.childNodes);
    nodes[index] = a;
    return end + target[0].length;
}

/* --- colours of code ------------------------------------------------------------------------- */

const words = (text) => new Set(text.split(' '));
/* One list for all languages with braces: a word too many does less harm than a list for each. */
const BRACES = words(
    'abstract as async await auto bool boolean break byte case catch chan char class const ' +
        'constexpr continue crate default defer delete do double dyn else enum export extends ' +
        'extern false final finally float fn for func function get go goto if impl implements ' +
        'import in inline instanceof int interface let long loop map match mod move mut namespace ' +
        'new nil null nullptr NULL of operator override package private protected pub public range ' +
        'readonly ref return self Self set short signed sizeof static string struct super switch ' +
        'template this throw trait true try type typedef typename typeof undefined union unsafe ' +
        'unsigned use using var virtual void volatile where while yield',
);
const FAMILIES = {
    braces: { words: BRACES, line: '//', block: true },
    python: {
        words: words(
            'and as assert async await break class continue def del elif else except False ' +
                'finally for from global if import in is lambda match None nonlocal not or pass ' +
                'raise return self True try while with yield end nil do module',
        ),
        line: '#',
    },
    shell: {
        words: words(
            'if then else elif fi for in do done while until case esac function return local ' +
                'export set unset echo cd exit source sudo',
        ),
        line: '#',
    },
    sql: {
        words: words(
            'select from where and or not insert into values update set delete create table ' +
                'drop alter join left right inner outer on group by order having limit as null is ' +
                'in like between distinct union all primary key foreign references index view case ' +
                'when then else end',
        ),
        line: '--',
        block: true,
        anyCase: true,
    },
    data: { words: words('true false null yes no on off'), line: '#' },
    css: { words: words('important media import'), block: true },
    markup: { markup: true },
};
const LANGUAGES = new Map(
    Object.entries({
        braces:
            'c h cpp c++ cc hpp cs csharp c# java kotlin swift php scala dart js javascript jsx ' +
            'ts typescript tsx rust rs go golang zig',
        python: 'py python python3 rb ruby',
        shell: 'sh bash shell zsh console dockerfile makefile make cmake',
        sql: 'sql',
        data: 'json jsonc yaml yml toml ini',
        css: 'css scss',
        markup: 'html xml svg vue',
    }).flatMap(([family, names]) => names.split(' ').map((name) => [name, FAMILIES[family]])),
);

const patterns = new Map();

/* One expression for each family; its groups: comment, string, number, word, tag. */
function patternOf(family) {
    const known = patterns.get(family);
    if (known) return known;
    let comment,
        string = '"(?:[^"\\\\\\n]|\\\\.)*"?',
        tag = '(?!)';
    if (family.markup) {
        comment = '<!--[^]*?(?:-->|$)';
        string += "|'[^'\\n]*'";
        tag = '<\\/?[A-Za-z][\\w:-]*|\\/?>';
    } else {
        const parts = [];
        if (family.line)
            parts.push(family.line === '#' ? '(?<![\\w$&])#[^\\n]*' : `${family.line}[^\\n]*`);
        if (family.block) parts.push('\\/\\*[^]*?(?:\\*\\/|$)');
        comment = parts.join('|') || '(?!)';
        if (family === FAMILIES.python) string = `"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|${string}`;
        /* Neither an apostrophe nor a lifetime of Rust. */
        string += "|(?<![\\w<&])'(?:[^'\\\\\\n]|\\\\.)*'";
        if (family === FAMILIES.braces) string += '|`(?:[^`\\\\]|\\\\.)*`?';
    }
    const number = '\\b(?:0[xXbBoO][\\da-fA-F_]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)\\w*\\b';
    const made = new RegExp(
        `(${comment})|(${string})|(${number})|([A-Za-z_$][\\w$]*)|(${tag})`,
        'g',
    );
    patterns.set(family, made);
    return made;
}

function classOf(m, family, text) {
    if (m[1]) return 'c-comment';
    if (m[2]) return 'c-string';
    if (m[3]) return 'c-number';
    if (m[5]) return 'c-word';
    if (family.words?.has(family.anyCase ? m[4].toLowerCase() : m[4])) return 'c-word';
    return !family.markup && text[m.index + m[4].length] === '(' ? 'c-call' : '';
}

function colour(el, text, language) {
    const family = LANGUAGES.get(language);
    if (!family || text.length > MAX_COLOURED) {
        el.textContent = text;
        return;
    }
    const out = document.createDocumentFragment();
    const scan = new RegExp(patternOf(family));
    let plain = '',
        at = 0;
    const flush = () => {
        if (plain) out.append(plain);
        plain = '';
    };
    for (let m; (m = scan.exec(text));) {
        plain += text.slice(at, m.index);
        at = scan.lastIndex;
        const kind = classOf(m, family, text);
        if (kind) {
            flush();
            out.append(make('span', kind, m[0]));
        } else {
            plain += m[0];
        }
    }
    plain += text.slice(at);
    flush();
    el.append(out);
}

/* --- a growing text -------------------------------------------------------------------------- */

/* Keeps an element's children equal to the blocks of a text that grows (or is replaced). */
export class MarkdownView {
    constructor(el) {
        this.el = el;
        this.sources = [];
    }

    update(text) {
        const blocks = splitBlocks(text.replace(/\r\n?/g, '\n').replace(/\t/g, '    ').split('\n'));
        const sources = blocks.map((b) => b.kind + '\n' + b.lines.join('\n'));
        let same = 0;
        while (same < sources.length && sources[same] === this.sources[same]) same++;
        while (this.el.childNodes.length > same) this.el.lastChild.remove();
        for (const block of blocks.slice(same)) this.el.append(build(block));
        this.sources = sources;
    }
}
