/* The chat page: what is on the screen, and what a key or a click does.
 *
 * `chats` is the truth and is kept by store.js; each chat may have one running answer (`runs`),
 * which goes on while another chat is looked at. Text of models and users reaches the page only as
 * text. */

import { ApiError, complete, describe, health } from './api.js';
import { MarkdownView } from './markdown.js';
import * as store from './store.js';

const $ = (id) => document.getElementById(id);
const SAMPLING = ['temperature', 'top_p', 'top_k', 'max_tokens', 'seed'];
const LONG_MESSAGE = 1500; /* characters from which a user's message is shown folded */
const PICTURE_SIDE = 1536; /* larger pictures are scaled down: the browser keeps chats in a few MB */
const PICTURE_BYTES = 300000; /* larger files are written anew, as JPEG */
const SAVE_MS = 1000; /* a running answer is saved this often */

let chats = store.loadChats();
let chat = chats[0] ?? store.newChat();
let settings = store.loadSettings();
let key = store.loadKey();
let about = null; /* the model; null: not known yet */
let attached = []; /* pictures of the message being written: data: URLs */
let leaving = false; /* the browser breaks connections off while a page is left */
const runs = new Map(); /* chat id -> {message, abort, begun, firstAt, pieces, savedAt} */
const elements = new WeakMap(); /* message -> what shows it */
const views = new WeakMap(); /* message -> its AnswerView */

const fromTemplate = (id) => $(id).content.firstElementChild.cloneNode(true);
const lastOf = (list) => list[list.length - 1];
const count = (n) => n.toLocaleString('en');

/* --- saying things --------------------------------------------------------------------------- */

let toastTimer = 0;
function toast(text, action, act) {
    const [label, button] = $('toast').children;
    label.textContent = text;
    button.hidden = !action;
    button.textContent = action ?? '';
    button.onclick = () => {
        $('toast').hidden = true;
        act();
    };
    $('toast').hidden = false;
    clearTimeout(toastTimer);
    toastTimer = setTimeout(
        () => {
            $('toast').hidden = true;
        },
        action ? 8000 : 3000,
    );
}

function save(c) {
    if (!chats.includes(c)) return; /* deleted meanwhile */
    if (!store.saveChat(c))
        toast('This browser has no room left for chats: export some, then delete them.');
}

async function copy(text) {
    try {
        await navigator.clipboard.writeText(text);
    } catch {
        /* no clipboard API outside of https and localhost */
        const box = document.createElement('textarea');
        box.value = text;
        document.body.append(box);
        box.select();
        document.execCommand('copy');
        box.remove();
    }
    toast('Copied');
}

/* --- the server ------------------------------------------------------------------------------ */

function showServer(state, text) {
    $('dot').dataset.state = state;
    $('model-name').textContent = about ? about.name : text;
    $('model-name').title = about?.id ?? '';
    $('model-device').textContent = about?.device ?? '';
    $('notice').hidden = state === 'ready';
    $('notice').textContent = text;
    refreshComposer();
}

let watching = false;
/* Ask until the server answers and the model is known. */
async function watch() {
    if (watching) return;
    watching = true;
    for (;;) {
        const state = await health();
        if (state === 'ready' && (await meet())) break;
        if (state === 'loading') showServer('loading', 'The model is loading…');
        if (state === 'away') showServer('away', 'No connection to the server. Trying again…');
        await new Promise((done) => {
            setTimeout(done, 1000);
        });
    }
    watching = false;
}

/* Learn what the model is; false: to be tried again. Without a key, the dialog goes on instead. */
async function meet() {
    try {
        about = await describe(key);
    } catch (e) {
        if (e.kind === 'key') {
            showServer('away', 'This server wants an API key.');
            askKey();
        } else {
            showServer('away', e.message);
        }
        return e.kind === 'key';
    }
    document.title = `${about.name} · 1bit`;
    for (const name of SAMPLING) {
        const value = about.defaults[name];
        if (Number.isFinite(value)) field(name).placeholder = String(value);
    }
    showServer('ready', '');
    return true;
}

function askKey() {
    $('key-note').textContent = key
        ? 'The key that was used was not accepted.'
        : 'It is kept in this browser only.';
    if (!$('ask-key').open) $('ask-key').showModal();
}

function setKey(value) {
    key = value.trim();
    store.saveKey(key);
    field('key').value = key;
}

/* --- scrolling ------------------------------------------------------------------------------- */

/* The page follows the newest text unless the user went up; going back to the end resumes. */
let following = true,
    lastTop = 0;

function onScroll() {
    const { scrollTop, scrollHeight, clientHeight } = $('scroll');
    const left = scrollHeight - clientHeight - scrollTop;
    if (left < 8) following = true;
    else if (scrollTop < lastTop) following = false;
    lastTop = scrollTop;
    $('jump').hidden = left < 200;
}

function follow() {
    if (following) $('scroll').scrollTop = $('scroll').scrollHeight;
    onScroll();
}

function toEnd() {
    following = true;
    follow();
}

/* --- messages -------------------------------------------------------------------------------- */

const NOTES = {
    length: 'cut off at the token limit',
    stopped: 'stopped',
    content_filter: 'withheld',
};

function statsText(message, run) {
    const parts = [];
    const s = message.stats ?? {};
    if (Number.isFinite(s.perSecond)) parts.push(`${s.perSecond.toFixed(1)} tok/s`);
    if (Number.isFinite(s.tokens)) parts.push(`${count(s.tokens)} tokens`);
    if (Number.isFinite(s.firstMs))
        parts.push(`first token ${(s.firstMs / 1000).toFixed(2)} s`);
    if (!run) {
        const note = message.finish ? NOTES[message.finish] : message.error ? '' : 'interrupted';
        if (note) parts.push(note);
    }
    return parts.join(' · ');
}

class AnswerView {
    constructor(message) {
        this.message = message;
        this.el = fromTemplate('t-answer');
        this.thought = this.el.querySelector('.thought');
        this.thinking = new MarkdownView(this.thought.querySelector('.md'));
        this.text = new MarkdownView(this.el.querySelector('.text'));
        this.thoughtWasOver = true; /* what is loaded stays folded */
        views.set(message, this);
    }

    update(run) {
        const { content, reasoning, error, stats } = this.message;
        const part = (name) => this.el.querySelector(name);
        this.text.update(content);
        this.thinking.update(reasoning ?? '');
        this.thought.hidden = !reasoning;
        const over = !run || content !== '';
        const seconds = ((stats?.thoughtMs ?? 0) / 1000).toFixed(1);
        part('.thought > summary').textContent = !over
            ? 'Thinking…'
            : stats?.thoughtMs
              ? `Thought for ${seconds} s`
              : 'Thoughts';
        if (over !== this.thoughtWasOver) this.thought.open = !over;
        this.thoughtWasOver = over;
        part('.wait').hidden = !run || Boolean(content || reasoning);
        part('.error').hidden = !error;
        if (error) {
            part('.error > p').textContent = error.message;
            part('.error code').textContent = error.detail;
            part('.error details').hidden = !error.detail;
        }
        part('.copy').hidden = !content;
        part('.stats').textContent = statsText(this.message, run);
        this.el.classList.toggle('busy', Boolean(run));
        this.el.setAttribute('aria-busy', String(Boolean(run)));
    }
}

function pictureElement(url) {
    const img = document.createElement('img');
    img.alt = 'A picture of the message';
    img.src = url;
    img.onload = follow;
    return img;
}

function userElement(message) {
    const el = fromTemplate('t-user');
    elements.set(message, el);
    const text = el.querySelector('.text'),
        more = el.querySelector('.more');
    text.textContent = message.content;
    text.hidden = !message.content;
    const pictures = el.querySelector('.pictures');
    pictures.hidden = !message.pictures?.length;
    pictures.append(...(message.pictures ?? []).map(pictureElement));
    const long = message.content.length > LONG_MESSAGE || message.content.split('\n').length > 16;
    text.classList.toggle('cut', long);
    more.hidden = !long;
    more.onclick = () => {
        more.textContent = text.classList.toggle('cut') ? 'Show all' : 'Show less';
    };
    el.querySelector('.copy').onclick = () => copy(message.content);
    el.querySelector('.edit').onclick = () => edit(el, message);
    return el;
}

function answerElement(message) {
    const view = new AnswerView(message);
    elements.set(message, view.el);
    view.el.querySelector('.copy').onclick = () => copy(message.content);
    view.el.querySelector('.again').onclick = again;
    view.el.querySelector('.retry').onclick = again;
    return view.el;
}

const runOf = (message) => [...runs.values()].find((run) => run.message === message);

/* What is shown already stays: a screen reader must hear new messages only. */
function showChat() {
    const thread = $('thread');
    const wanted = chat.messages.map(
        (m) => elements.get(m) ?? (m.role === 'user' ? userElement(m) : answerElement(m)),
    );
    let same = 0;
    while (same < wanted.length && thread.children[same] === wanted[same]) same++;
    while (thread.children.length > same) thread.lastChild.remove();
    thread.append(...wanted.slice(same));
    for (const m of chat.messages.slice(same)) views.get(m)?.update(runOf(m));
    refreshComposer();
    toEnd();
}

/* Only the end of a conversation can be changed: the last question, the last answer. */
function refreshTools() {
    const busy = runs.has(chat.id);
    const lastUser = lastOf(chat.messages.filter((m) => m.role === 'user'));
    chat.messages.forEach((m, i) => {
        const el = $('thread').children[i];
        const button = el?.querySelector(m.role === 'user' ? '.tools .edit' : '.again');
        const isLast = i === chat.messages.length - 1;
        if (button)
            button.hidden =
                busy || Boolean(m.error) || (m.role === 'user' ? m !== lastUser : !isLast);
        el?.querySelector('.retry')?.toggleAttribute('hidden', busy || !isLast);
    });
}

function edit(el, message) {
    const form = fromTemplate('t-edit');
    const box = form.querySelector('textarea');
    box.value = message.content;
    const close = () => {
        el.replaceWith(userElement(message));
        refreshTools();
    };
    for (const child of el.children) child.hidden = true;
    form.querySelector('.cancel').onclick = close;
    form.onsubmit = (e) => {
        e.preventDefault();
        const at = chat.messages.indexOf(message);
        if (!(box.value.trim() || message.pictures) || at < 0 || !canSend()) return;
        chat.messages.length = at;
        ask(box.value, message.pictures);
    };
    box.onkeydown = (e) => {
        if (isEnter(e)) {
            e.preventDefault();
            form.requestSubmit();
        } else if (e.key === 'Escape') {
            e.stopPropagation();
            close();
        }
    };
    el.append(form);
    fit(box);
    box.focus();
}

/* --- asking ---------------------------------------------------------------------------------- */

const canSend = () => about !== null && $('dot').dataset.state === 'ready' && !runs.has(chat.id);

/* The messages as the API wants them: answers that hold nothing are left out, and neighbours of one
 * role are joined, since many chat templates insist on turns. */
function history(c) {
    const out = [];
    const system = (settings.system ?? '').trim();
    if (system) out.push({ role: 'system', content: system });
    for (const { role, content, pictures, reasoning } of c.messages) {
        if (role === 'assistant' && !content) continue;
        const before = lastOf(out);
        if (before?.role === role && !pictures && typeof before.content === 'string')
            before.content += '\n\n' + content;
        else if (before?.role === role)
            before.content = [...partsOf(before.content), ...partsOf(content, pictures)];
        else
            out.push({
                role,
                content: pictures ? partsOf(content, pictures) : content,
                ...(reasoning && { reasoning_content: reasoning }),
            });
    }
    return out;
}

/* A message's content as parts: its pictures, then its text. A model that reads none gets the text. */
function partsOf(content, pictures = []) {
    if (Array.isArray(content)) return content;
    const urls = about?.pictures ? pictures : [];
    const parts = urls.map((url) => ({ type: 'image_url', image_url: { url } }));
    if (content || !parts.length) parts.push({ type: 'text', text: content });
    return parts;
}

function ask(text, pictures) {
    if (!chat.title) chat.title = text.trim().split('\n')[0].slice(0, 60) || 'A picture';
    if (!chats.includes(chat)) chats.unshift(chat);
    chat.messages.push({ role: 'user', content: text, ...(pictures?.length && { pictures }) });
    generate(chat);
}

function again() {
    if (!canSend()) return;
    if (lastOf(chat.messages)?.role === 'assistant') chat.messages.pop();
    if (chat.messages.length) generate(chat);
}

async function generate(c) {
    const messages = history(c);
    const message = { role: 'assistant', content: '', reasoning: '', stats: {} };
    const run = {
        message,
        abort: new AbortController(),
        begun: performance.now(),
        firstAt: 0,
        pieces: 0,
        savedAt: 0,
    };
    runs.set(c.id, run);
    c.messages.push(message);
    c.updated = Date.now();
    chats.sort((a, b) => b.updated - a.updated);
    save(c);
    showList();
    showChat();
    const sampling = Object.fromEntries(
        SAMPLING.filter((n) => n in settings).map((n) => [n, settings[n]]),
    );
    try {
        const options = { key, signal: run.abort.signal };
        for await (const piece of complete({ model: about.id, messages, ...sampling }, options))
            take(c, run, piece);
    } catch (e) {
        if (e.name === 'AbortError') message.finish = 'stopped';
        else if (!leaving) fail(message, e);
    }
    runs.delete(c.id);
    if (!message.reasoning) delete message.reasoning;
    save(c);
    showList();
    views.get(message)?.update();
    refreshComposer();
    if (c === chat) follow();
}

function take(c, run, { content, reasoning, finish, usage, timings }) {
    const { message } = run;
    const s = message.stats;
    const now = performance.now();
    if (content || reasoning) {
        if (!run.firstAt) {
            run.firstAt = now;
            s.firstMs = now - run.begun;
        } else {
            /* About one token a piece; the server's own figures replace this at the end. */
            s.perSecond = (run.pieces * 1000) / (now - run.firstAt);
        }
        s.tokens = ++run.pieces;
        message.reasoning += reasoning;
        if (content && message.reasoning && !message.content) s.thoughtMs = now - run.firstAt;
        message.content += content;
    }
    if (finish) message.finish = finish;
    if (usage) {
        s.tokens = usage.completion_tokens ?? s.tokens;
        s.context = usage.total_tokens;
    }
    if (timings) s.perSecond = timings.predicted_per_second; // none from an emulated device
    if (now - run.savedAt > SAVE_MS) {
        run.savedAt = now;
        save(c);
    }
    draw(c, run);
}

/* Once a frame, however many tokens came. */
function draw(c, run) {
    if (run.drawing || c !== chat) return;
    run.drawing = true;
    requestAnimationFrame(() => {
        run.drawing = false;
        if (runs.get(c.id) !== run || c !== chat) return;
        views.get(run.message)?.update(run);
        follow();
    });
}

function fail(message, e) {
    const known = e instanceof ApiError;
    message.error = known
        ? { kind: e.kind, message: e.message, detail: e.detail }
        : { kind: 'server', message: 'Something went wrong in this page.', detail: String(e) };
    if (e.kind === 'key') askKey();
    if (e.kind === 'network' || e.kind === 'loading') watch();
}

const stop = () => runs.get(chat.id)?.abort.abort();

/* --- pictures -------------------------------------------------------------------------------- */

function asUrl(blob) {
    return new Promise((done, failed) => {
        const reader = new FileReader();
        reader.onload = () => done(reader.result);
        reader.onerror = () => failed(reader.error);
        reader.readAsDataURL(blob);
    });
}

/* The file as it is, or smaller. */
async function readPicture(file) {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, PICTURE_SIDE / Math.max(bitmap.width, bitmap.height));
    if (scale === 1 && file.size <= PICTURE_BYTES && /^image\/(png|jpeg|webp)$/.test(file.type))
        return asUrl(file);
    const canvas = document.createElement('canvas');
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    const paint = canvas.getContext('2d');
    paint.fillStyle = '#fff';
    paint.fillRect(0, 0, canvas.width, canvas.height);
    paint.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    return canvas.toDataURL('image/jpeg', 0.9);
}

async function attach(files) {
    for (const file of files) {
        try {
            attached.push(await readPicture(file));
        } catch {
            toast(`${file.name} is no picture that this browser can read.`);
        }
    }
    showAttached();
}

function showAttached() {
    $('attached').hidden = !attached.length;
    $('attached').replaceChildren(
        ...attached.map((url) => {
            const li = fromTemplate('t-picture');
            li.querySelector('img').src = url;
            li.querySelector('.drop').onclick = () => {
                attached = attached.filter((u) => u !== url);
                showAttached();
            };
            return li;
        }),
    );
    refreshComposer();
}

/* --- composer -------------------------------------------------------------------------------- */

const isEnter = (e) => e.key === 'Enter' && !e.shiftKey && !e.isComposing;

function fit(box) {
    box.style.height = 'auto';
    box.style.height = `${box.scrollHeight + box.offsetHeight - box.clientHeight}px`;
}

function refreshComposer() {
    const busy = runs.has(chat.id);
    $('stop').hidden = !busy;
    $('send').hidden = busy;
    $('send').disabled = !canSend() || !($('input').value.trim() || attached.length);
    $('attach').hidden = !about?.pictures;
    document.body.classList.toggle('empty', !chat.messages.length);
    for (const idea of $('ideas').children) idea.disabled = !canSend();
    const used = lastOf(chat.messages.filter((m) => m.stats?.context))?.stats.context;
    $('context').textContent = !used
        ? ''
        : about?.nCtx
          ? `${count(used)} of ${count(about.nCtx)} tokens used`
          : `${count(used)} tokens used`;
    refreshTools();
}

function submit() {
    const text = $('input').value;
    const pictures = attached;
    if (!(text.trim() || pictures.length) || !canSend()) return;
    $('input').value = '';
    fit($('input'));
    attached = [];
    showAttached();
    ask(text, pictures);
}

/* --- list of chats --------------------------------------------------------------------------- */

function showList() {
    $('chats').replaceChildren(
        ...chats.map((c) => {
            const li = fromTemplate('t-chat');
            const title = li.querySelector('.title');
            title.textContent = title.title = c.title || 'New chat';
            title.onclick = () => select(c);
            if (c === chat) title.setAttribute('aria-current', 'true');
            li.classList.toggle('on', c === chat);
            li.classList.toggle('busy', runs.has(c.id));
            li.querySelector('.rename').onclick = () => rename(li, c);
            li.querySelector('.drop').onclick = () => drop(c);
            return li;
        }),
    );
}

const narrow = matchMedia('(max-width: 760px)');
const isNarrow = () => narrow.matches;

function showSide(open) {
    document.body.classList.toggle('side-closed', !open);
    $('menu').setAttribute('aria-expanded', String(open));
}

function select(c) {
    chat = c;
    if (isNarrow()) showSide(false);
    showList();
    showChat();
    $('input').focus();
}

function rename(li, c) {
    const box = document.createElement('input');
    box.value = c.title;
    box.maxLength = 200;
    box.setAttribute('aria-label', 'Name of the chat');
    const done = (keep) => {
        box.onblur = null;
        if (keep && box.value.trim()) {
            c.title = box.value.trim();
            save(c);
        }
        showList();
    };
    box.onblur = () => done(true);
    box.onkeydown = (e) => {
        e.stopPropagation();
        if (e.key === 'Enter') done(true);
        if (e.key === 'Escape') done(false);
    };
    li.replaceChildren(box);
    box.select();
}

function drop(c) {
    runs.get(c.id)?.abort.abort();
    const at = chats.indexOf(c);
    chats.splice(at, 1);
    store.dropChat(c.id);
    if (c === chat) select(chats[Math.min(at, chats.length - 1)] ?? store.newChat());
    else showList();
    toast('Chat deleted', 'Undo', () => {
        chats.push(c);
        chats.sort((a, b) => b.updated - a.updated);
        save(c);
        select(c);
    });
}

/* --- settings -------------------------------------------------------------------------------- */

const form = $('settings').querySelector('form');
const field = (name) => form.elements[name];

function showSettings() {
    for (const name of ['system', ...SAMPLING]) field(name).value = settings[name] ?? '';
    field('theme').value = store.loadTheme();
    field('key').value = key;
}

function onSetting({ target }) {
    const { name, value } = target;
    if (name === 'theme') {
        setTheme(value);
    } else if (name === 'key') {
        setKey(value);
        watch();
    } else if (name === 'system' || SAMPLING.includes(name)) {
        if (!target.reportValidity()) return;
        if (value === '') delete settings[name];
        else settings[name] = name === 'system' ? value : Number(value);
        store.saveSettings(settings);
    }
}

function setTheme(theme) {
    store.saveTheme(theme);
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    field('theme').value = theme;
}

function exportAll() {
    const a = document.createElement('a');
    a.href = URL.createObjectURL(
        new Blob([store.exportChats(chats)], { type: 'application/json' }),
    );
    a.download = `1bit-chats-${new Date().toISOString().slice(0, 10)}.json`;
    a.click();
    setTimeout(() => URL.revokeObjectURL(a.href), 10000);
}

/* Chats that are here already stay as they are; the file's come beside them. */
async function importFile(file) {
    try {
        const found = store.parseExport(await file.text());
        for (const c of found) {
            if (chats.some((known) => known.id === c.id)) c.id = store.newId();
            chats.push(c);
            save(c);
        }
        chats.sort((a, b) => b.updated - a.updated);
        showList();
        toast(`${count(found.length)} ${found.length === 1 ? 'chat' : 'chats'} imported`);
    } catch (e) {
        toast(e.message);
    }
}

/* --- wiring ---------------------------------------------------------------------------------- */

/* Another tab changed a chat: take its version, unless this tab is writing it. */
addEventListener('storage', (e) => {
    const id = store.chatIdOf(e.key);
    if (!id || runs.has(id)) return;
    const mine = chats.find((c) => c.id === id),
        theirs = store.loadChat(id);
    chats = chats
        .filter((c) => c !== mine)
        .concat(theirs ?? [])
        .sort((a, b) => b.updated - a.updated);
    if (mine && mine === chat) {
        chat = theirs ?? store.newChat();
        showChat();
    }
    showList();
});
addEventListener('pagehide', () => {
    leaving = true;
    chats.filter((c) => runs.has(c.id)).forEach(save);
});
addEventListener('pageshow', () => {
    leaving = false;
});
addEventListener('keydown', (e) => {
    if (e.key !== 'Escape' || document.querySelector('dialog[open]')) return;
    if (isNarrow() && !document.body.classList.contains('side-closed')) showSide(false);
    else stop();
});

$('scroll').onscroll = onScroll;
$('jump').onclick = toEnd;
$('stop').onclick = stop;
$('composer').onsubmit = (e) => {
    e.preventDefault();
    submit();
};
$('input').oninput = () => {
    fit($('input'));
    refreshComposer();
};
$('input').onkeydown = (e) => {
    if (!isEnter(e)) return;
    e.preventDefault();
    submit();
};
$('input').onpaste = (e) => {
    const files = [...e.clipboardData.files].filter((f) => f.type.startsWith('image/'));
    if (!files.length || !about?.pictures) return;
    e.preventDefault();
    attach(files);
};
$('attach').onclick = () => $('pictures').click();
$('pictures').onchange = () => {
    attach([...$('pictures').files]);
    $('pictures').value = '';
    $('input').focus();
};
$('ideas').onclick = (e) => {
    if (e.target.matches('button') && canSend()) ask(e.target.textContent);
};
$('thread').onclick = (e) => {
    const button = e.target.closest('.copy-code');
    if (button) copy(button.closest('.code').querySelector('code').textContent);
};
$('new-chat').onclick = () => select(chat.messages.length ? store.newChat() : chat);
$('menu').onclick = () => showSide(document.body.classList.contains('side-closed'));
$('shade').onclick = () => showSide(false);
$('theme').onclick = () => {
    const theme = document.documentElement.dataset.theme;
    const dark = theme ? theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    setTheme(dark ? 'light' : 'dark');
};
$('open-settings').onclick = () => {
    showSettings();
    $('settings').showModal();
};
form.onchange = onSetting;
form.onsubmit = (e) => {
    e.preventDefault();
    $('settings').close();
};
for (const dialog of document.querySelectorAll('dialog')) {
    dialog.querySelector('.close').onclick = () => dialog.close();
    dialog.onclick = (e) => {
        if (e.target === dialog) dialog.close(); /* the backdrop */
    };
}
$('reset').onclick = () => {
    settings = {};
    store.saveSettings(settings);
    showSettings();
};
$('export').onclick = exportAll;
$('import').onclick = () => $('file').click();
$('file').onchange = () => {
    if ($('file').files[0]) importFile($('file').files[0]);
    $('file').value = '';
};
$('ask-key').querySelector('form').onsubmit = (e) => {
    e.preventDefault();
    setKey(e.target.elements.key.value);
    e.target.reset();
    $('ask-key').close();
    watch();
};

setTheme(store.loadTheme());
showSide(!isNarrow());
narrow.onchange = () => showSide(!isNarrow());
showList();
showChat();
watch();
