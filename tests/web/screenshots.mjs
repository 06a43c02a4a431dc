// The pictures of the README, taken from a running server: what they show is what it answered.
//
//   node screenshots.mjs http://127.0.0.1:8000/ ../../docs/img
import { join } from 'node:path';
import { ask, answered, launch, openPage } from './browser.mjs';

const [url = 'http://127.0.0.1:8000/', folder = '../../docs/img'] = process.argv.slice(2);
const QUESTIONS = [
    'Give me three tips for better sleep, as a list.',
    'Write a Python function that checks whether a number is prime.',
];

const browser = await launch();

async function picture(name, options, questions, settings = {}) {
    const { page, done } = await openPage(browser, url, { expect: /status of 400/, ...options });
    await page.evaluate((s) => localStorage.setItem('1bit.settings', JSON.stringify(s)), {
        temperature: 0,
        max_tokens: 300,
        ...settings,
    });
    await page.reload();
    await page.waitForSelector('#dot[data-state="ready"]');
    page.setDefaultTimeout(120000);
    for (const question of questions) {
        if (await page.isVisible('#new-chat')) await page.click('#new-chat');
        await ask(page, question);
        await answered(page);
    }
    await page.waitForTimeout(300);
    await page.screenshot({ path: join(folder, `chat-${name}.png`) });
    await done();
}

const desktop = { width: 1200, height: 760 };
await picture('light', { viewport: desktop, colorScheme: 'light' }, QUESTIONS);
await picture('dark', { viewport: desktop, colorScheme: 'dark' }, QUESTIONS);
await picture('phone', { viewport: { width: 375, height: 720 }, colorScheme: 'light' }, [
    QUESTIONS[0],
]);
await picture('error', { viewport: desktop, colorScheme: 'light' }, [
    'too many words '.repeat(4000),
]);
await browser.close();
