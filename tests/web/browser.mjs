// Debian's Chromium, and pages that fail a test for whatever a page must not do: complain on the
// console, throw, or ask another host for anything.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { chromium } from 'playwright-core';

const NAMES = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'];
export const executablePath = [process.env.CHROMIUM, ...NAMES].find((p) => p && existsSync(p));

// playwright-core makes a fresh --user-data-dir for each launch and removes it.
export const launch = () =>
    chromium.launch({
        executablePath,
        args: [
            '--headless',
            '--no-sandbox',
            '--disable-gpu',
            '--disable-quic',
            '--no-first-run',
            '--disable-background-networking',
            '--disable-component-update',
            '--disable-sync',
        ],
    });

// A page in a fresh profile. `expect`: console errors that the test provokes. done() checks what
// was seen and closes.
export async function openPage(browser, url, { expect = /(?!)/, ready = true, ...options } = {}) {
    const context = await browser.newContext({
        viewport: { width: 1200, height: 800 },
        ...options,
    });
    const page = await context.newPage();
    const complaints = [];
    const home = new URL(url).host;
    page.on('console', (m) => {
        if (['error', 'warning'].includes(m.type()) && !expect.test(m.text()))
            complaints.push(m.text());
    });
    page.on('pageerror', (e) => complaints.push(`thrown: ${e.stack}`));
    context.on('request', (r) => {
        const { protocol, host } = new URL(r.url());
        if (!['data:', 'blob:'].includes(protocol) && host !== home)
            complaints.push(`asked ${r.url()}`);
    });
    page.setDefaultTimeout(15000);
    await page.goto(url);
    if (ready) await page.waitForSelector('#dot[data-state="ready"]');
    const done = async () => {
        await context.close();
        assert.deepEqual(complaints, []);
    };
    return { page, context, done };
}

export async function ask(page, text) {
    await page.fill('#input', text);
    await page.press('#input', 'Enter');
}

// The last answer, when nothing runs any more.
export async function answered(page) {
    await page.waitForSelector('#send:not([hidden])');
    return page.locator('.answer').last();
}
