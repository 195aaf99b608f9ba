"""Load data, build a ViT, train it, evaluate it, predict with it: python examples/first_steps.py"""

from PIL import Image

import vitreous as vt

data = vt.load_data("digits")
config = vt.ViTConfig(size="nano/2", image_size=8, channels=1, num_classes=10, pool="mean")
recipe = vt.Recipe(epochs=3, optim={"batch_size": 64})
run = vt.fit(recipe, data, model=vt.ViT(config), on_epoch=lambda row: print(row["epoch"], row["val_top1"]))
print(vt.evaluate(run.folder, data)["top1"])
for answer in vt.predict(run.bundle, [Image.fromarray(data.test.images.array[0, 0])], top=3):
    print(answer.classes, answer.probabilities)
