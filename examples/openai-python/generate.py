"""Paints a picture with OpenAI's own client: python generate.py PROMPT FILE [URL] [IMAGE]

With IMAGE the picture starts from it. Events are told as steps pass.
"""

import base64
import os
import sys
from pathlib import Path

import openai


def main(prompt: str, file: str, url: str = "http://127.0.0.1:50480/v1", image: str = "") -> int:
    client = openai.OpenAI(base_url=url, api_key=os.environ.get("PENTIMENTO_TOKEN", "none"), max_retries=0)
    try:
        if image:
            extension = {"strength": 0.6}
            events = client.images.edit(
                prompt=prompt, image=Path(image), stream=True, partial_images=2, extra_body=extension
            )
        else:
            events = client.images.generate(prompt=prompt, stream=True, partial_images=2)
        for event in events:
            if event.type.endswith(".completed"):
                Path(file).write_bytes(base64.b64decode(event.b64_json))
                print(f"{event.type} {file}: {event.size}, {event.usage.output_tokens} tokens")
            else:
                print(f"{event.type} {event.partial_image_index}")
    except openai.APIError as error:
        # What ends a stream that had begun has no status.
        status = getattr(error, "status_code", "stream")
        print(f"{status} {error.code} {error.param}: {error.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
