"""Works on one image at a time: recognizes it, checks it, and brings it into a form that every decoder reads alike.

```
skip_by_name   the names of files that plainly are not images
sniff          the format of a file, from its bytes and not from its name
jpeg, png      the headers of the two stored formats, and the check that a file is complete
other_formats  the formats that are never stored: GIF, BMP, WebP, TIFF, PPM, AVIF, JPEG 2000, HEIC, JPEG XL
exif           the orientation tag, and boxes that turn with the pixels
to_8bit        16-bit samples, alpha and CMYK to 8-bit gray or RGB
transcode      resizing and encoding
seekable       restart markers, from which a crop can be decoded
masks          the classes of an image's pixels, which follow what is done to it
normalize      the way through all of these: `prepare_image`
image_header   the size and the odd properties of a file, without decoding it
decode         a stored image as an array, or a crop of it
verify         the check of a stored image
contact_sheet  many images in one picture
```

Pillow decodes; the native library checks JPEGs, resizes, and adds restart markers without loss. NumPy is imported only
for images of more than 8 bits, masks and contact sheets.
"""
