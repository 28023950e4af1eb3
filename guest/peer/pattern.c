/*
 * The bytes that are sent, and the verification of received ones.
 */
#include "peer.h"

static uint8_t byte(struct pattern pattern, size_t i, unsigned message)
{
	return (uint8_t)(i * pattern.factor + pattern.offset + message);
}

/* Writes the bytes of a pattern from `from` on. Each message of an end differs: message 1 is message 0 plus one. */
void fill(uint8_t *bytes, size_t from, size_t length, struct pattern pattern, unsigned message)
{
	for (size_t i = 0; i < length; i++)
		bytes[i] = byte(pattern, from + i, message);
}

void verify(const char *what, const uint8_t *bytes, size_t from, size_t length, struct pattern pattern, unsigned message)
{
	for (size_t i = 0; i < length; i++)
		if (bytes[i] != byte(pattern, from + i, message))
			fail("%s: byte %zu is %02x, not %02x", what, from + i, bytes[i], byte(pattern, from + i, message));
}
