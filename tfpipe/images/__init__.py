"""One image at a time: recognise it, check it, and bring it into a form every decoder reads alike.

```
sniff      which format the bytes are, whatever the file is called
jpeg, png  what the two stored formats say in their headers, and whether a file is whole
foreign    the formats that are never stored: GIF, BMP, WebP, TIFF, PPM, AVIF, JPEG 2000
exif       the orientation tag, and boxes that turn with the pixels
depth      16-bit samples to 8 bits
transcode  pixels of the wanted size, and their encoding
prepare    the way through all of these: `prepare_image`
pixels     a stored image as an array
form       what the stored images shall look like: `ImageForm`
```

Pillow does the decoding; NumPy is imported only for 16-bit images. Importing `form` imports neither.
"""
