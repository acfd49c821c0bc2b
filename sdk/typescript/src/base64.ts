// Base64 with the means of every runtime. Uploads carry their bytes as text.

const CHUNK = 0x8000;

/** Text passes: it is base64 already. */
export function toBase64(content: string | Uint8Array): string {
  if (typeof content === "string") return content;
  let binary = "";
  for (let at = 0; at < content.length; at += CHUNK) {
    binary += String.fromCharCode(...content.subarray(at, at + CHUNK));
  }
  return btoa(binary);
}
