// Paints one picture through Pentimento's public gRPC API. The contracts are loaded at run time; nothing is generated.
//
//   node generate.mjs "a red circle on a white background" picture.png [address]
//
// PENTIMENTO_TOKEN in the environment is sent as the bearer token of a suite that asks for one.
import { writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

const [prompt, picture, address = "127.0.0.1:50400"] = process.argv.slice(2);
if (!picture) {
  console.error("usage: node generate.mjs PROMPT PICTURE [ADDRESS]");
  process.exit(2);
}

const protos = process.env.PENTIMENTO_PROTOS ?? fileURLToPath(new URL("../../protos", import.meta.url));
const contracts = protoLoader.loadSync("pentimento/api/image/v1/image_service.proto", {
  includeDirs: [protos],
  keepCase: true,
  longs: String,
  enums: String,
  oneofs: true,
});
const { ImageService } = grpc.loadPackageDefinition(contracts).pentimento.api.image.v1;

const metadata = new grpc.Metadata();
if (process.env.PENTIMENTO_TOKEN) metadata.set("authorization", `Bearer ${process.env.PENTIMENTO_TOKEN}`);

const client = new ImageService(address, grpc.credentials.createInsecure());
const call = client.Generate({ request: { prompt, seed: 0 } }, metadata, { deadline: Date.now() + 120_000 });
call.on("data", ({ event, accepted, progress, completed }) => {
  if (event === "accepted") console.log(`accepted ${accepted.request_id}`);
  if (event === "progress") console.log(`step ${progress.step} of ${progress.step_count}`);
  if (event === "completed") {
    writeFileSync(picture, completed.image);
    console.log(`completed ${picture}: ${completed.width_px}x${completed.height_px}`);
  }
});
call.on("error", (error) => {
  console.error(`failed: ${grpc.status[error.code]}: ${error.details}`);
  process.exitCode = 1;
});
call.on("status", () => client.close());
