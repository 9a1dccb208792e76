// node shoot.mjs NODE_MODULES SHOTS.json: takes the pictures that SHOTS.json lists, and prints a line of JSON about each.
//
// {"chromium": path, "shots": [{"url": address, "width": pixels, "png": file, "height": pixels or null for the whole page}]}
import fs from 'node:fs';
import path from 'node:path';
import { createRequire } from 'node:module';

const [modules, list] = process.argv.slice(2);
const puppeteer = createRequire(path.join(path.resolve(modules), 'x.js'))('puppeteer-core');
const { chromium, shots } = JSON.parse(fs.readFileSync(list, 'utf8'));
const PATIENCE_MS = 180000;
const HIGHEST = 16000; // Chromium's pictures are no higher

const browser = await puppeteer.launch({
  executablePath: chromium, args: ['--no-sandbox', '--disable-gpu', '--hide-scrollbars', '--force-color-profile=srgb'],
});
try {
  for (const shot of shots) {
    const page = await browser.newPage();
    const errors = [];
    page.on('pageerror', (error) => errors.push(String(error).slice(0, 400)));
    await page.setViewport({ width: shot.width, height: 1080 });
    // The page's present is the end of what it shows, for "an hour ago".
    await page.evaluateOnNewDocument((ahead) => { const now = Date.now; Date.now = () => now() + ahead; }, Number(new URL(shot.url).searchParams.get('to')) - Date.now());
    await page.goto(shot.url, { waitUntil: 'load' });
    await page.waitForFunction('window.boards?.ready()', { timeout: PATIENCE_MS });
    const height = Math.min(await page.evaluate('document.documentElement.scrollHeight'), HIGHEST);
    // Panels in view draw themselves; two frames later they have.
    await page.setViewport({ width: shot.width, height });
    await page.evaluate(() => new Promise((resolve) => { requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(resolve, 300))); }));
    await page.waitForFunction('window.boards.ready()', { timeout: PATIENCE_MS });
    // Not beyond the viewport, which would resize it: tables would measure themselves again, and be empty meanwhile.
    await page.screenshot({ path: shot.png, captureBeyondViewport: false, clip: { x: 0, y: 0, width: shot.width, height: Math.min(shot.height ?? height, height) } });
    const report = await page.evaluate('window.boards.report()');
    console.log(JSON.stringify({ ...report, png: shot.png, height, errors: [...report.errors, ...errors] }));
    await page.close();
  }
} finally {
  await browser.close();
}
