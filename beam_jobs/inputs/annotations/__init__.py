"""Folders of images whose boxes and captions lie in files of their own: COCO's JSON, Pascal VOC's XML."""
