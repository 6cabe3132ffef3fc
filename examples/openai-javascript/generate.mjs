// Paints a picture with OpenAI's own client: node generate.mjs PROMPT FILE [URL] [IMAGE]
// With IMAGE the picture starts from it. Events are told as steps pass.
import { createReadStream } from "node:fs";
import { writeFile } from "node:fs/promises";
import OpenAI from "openai";

const [prompt, file, url = "http://127.0.0.1:50480/v1", image] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: process.env.PENTIMENTO_TOKEN ?? "none", maxRetries: 0 });

try {
  const asked = { prompt, stream: true, partial_images: 2 };
  const events = image
    ? await client.images.edit({ ...asked, image: createReadStream(image), strength: 0.6 })
    : await client.images.generate(asked);
  for await (const event of events) {
    if (event.type.endsWith(".completed")) {
      await writeFile(file, Buffer.from(event.b64_json, "base64"));
      console.log(`${event.type} ${file}: ${event.size}, ${event.usage.output_tokens} tokens`);
    } else {
      console.log(`${event.type} ${event.partial_image_index}`);
    }
  }
} catch (error) {
  if (!(error instanceof OpenAI.APIError)) throw error;
  // What ends a stream that had begun has no status.
  console.error(`${error.status ?? "stream"} ${error.code} ${error.param}: ${error.message}`);
  process.exitCode = 1;
}
