/* What the browser keeps: chats, settings, the theme and the key, in localStorage.
 *
 *   1bit.chat.<id>   {id, title, created, updated, messages: [message]}
 *   1bit.settings    {system, temperature, ...}: only what the user set
 *   1bit.theme       "light" or "dark"; absent: as the system has it
 *   1bit.key         the API key; never exported
 *
 * message: {role: "user"|"assistant", content, pictures?, reasoning?, stats?, finish?, error?}
 * pictures are data: URLs.
 * Storage may be full or forbidden: writing returns false then, and the page goes on in memory. */

const CHAT = '1bit.chat.';

function read(name) {
    try {
        return localStorage.getItem(name);
    } catch {
        return null;
    }
}

function write(name, value) {
    try {
        if (value === null || value === '') localStorage.removeItem(name);
        else localStorage.setItem(name, value);
        return true;
    } catch {
        return false;
    }
}

export function newId() {
    const bytes = crypto.getRandomValues(new Uint8Array(8));
    return Array.from(bytes, (b) => b.toString(16).padStart(2, '0')).join('');
}

export function newChat() {
    const now = Date.now();
    return { id: newId(), title: '', created: now, updated: now, messages: [] };
}

const isText = (v) => typeof v === 'string';
const isPicture = (v) => isText(v) && /^data:image\/(png|jpeg|webp);base64,[\w+/]+=*$/.test(v);
const orNothing = (v, ok) => (ok(v) ? v : undefined);
const isTime = (v) => Number.isFinite(v) && v > 0;

function checkedStats(s) {
    if (typeof s !== 'object' || s === null) return undefined;
    const out = {};
    for (const name of ['tokens', 'perSecond', 'firstMs', 'context', 'thoughtMs']) {
        if (Number.isFinite(s[name])) out[name] = s[name];
    }
    return out;
}

function checkedMessage(m) {
    if (!m || !['user', 'assistant'].includes(m.role) || !isText(m.content)) return null;
    const out = { role: m.role, content: m.content };
    if (Array.isArray(m.pictures) && m.pictures.every(isPicture)) out.pictures = m.pictures;
    if (isText(m.reasoning)) out.reasoning = m.reasoning;
    if (isText(m.finish)) out.finish = m.finish;
    if (m.stats) out.stats = checkedStats(m.stats);
    if (m.error && isText(m.error.message)) {
        out.error = {
            message: m.error.message,
            detail: orNothing(m.error.detail, isText) ?? '',
            kind: orNothing(m.error.kind, isText) ?? 'server',
        };
    }
    return out;
}

/* A chat with every field of the right type, or null: what is read may come from any file. */
function checkedChat(c) {
    if (!c || !isText(c.id) || !/^\w{1,64}$/.test(c.id) || !Array.isArray(c.messages)) return null;
    const messages = c.messages.map(checkedMessage);
    if (messages.includes(null)) return null;
    const now = Date.now();
    return {
        id: c.id,
        title: isText(c.title) ? c.title.slice(0, 200) : '',
        messages,
        created: orNothing(c.created, isTime) ?? now,
        updated: orNothing(c.updated, isTime) ?? now,
    };
}

function parse(text) {
    try {
        return JSON.parse(text);
    } catch {
        return null;
    }
}

/* Newest first. */
export function loadChats() {
    const chats = [];
    let names = [];
    try {
        names = Object.keys(localStorage);
    } catch {
        /* forbidden */
    }
    for (const name of names) {
        const chat = name.startsWith(CHAT) ? checkedChat(parse(read(name))) : null;
        if (chat) chats.push(chat);
    }
    return chats.sort((a, b) => b.updated - a.updated);
}

export const loadChat = (id) => checkedChat(parse(read(CHAT + id)));
export const chatIdOf = (name) => (name?.startsWith(CHAT) ? name.slice(CHAT.length) : null);
export const saveChat = (chat) => write(CHAT + chat.id, JSON.stringify(chat));
export const dropChat = (id) => write(CHAT + id, null);

export function loadSettings() {
    const s = parse(read('1bit.settings'));
    return s && typeof s === 'object' && !Array.isArray(s) ? s : {};
}
export const saveSettings = (s) => write('1bit.settings', JSON.stringify(s));
export const loadTheme = () =>
    orNothing(read('1bit.theme'), (v) => v === 'light' || v === 'dark') ?? '';
export const saveTheme = (theme) => write('1bit.theme', theme);
export const loadKey = () => read('1bit.key') ?? '';
export const saveKey = (key) => write('1bit.key', key);

export function exportChats(chats) {
    return JSON.stringify(
        { format: '1bit-chats', version: 1, exported: new Date().toISOString(), chats },
        null,
        1,
    );
}

/* Chats of an exported file; throws with the reason. */
export function parseExport(text) {
    const file = parse(text);
    if (file?.format !== '1bit-chats' || !Array.isArray(file.chats))
        throw new Error('This file holds no chats of this page.');
    if (file.version !== 1)
        throw new Error('This file was written by a newer version of this page.');
    const chats = file.chats.map(checkedChat);
    if (chats.includes(null)) throw new Error('This file is damaged: a chat in it cannot be read.');
    return chats;
}
